"""The checksums of a log's keys: a key is kept with one over its name and its value.

It is 8 bytes in front of the value: the value's last 8 bytes as a number, plus the CRC-32 of the
name and of all before those 8. So a server that puts an LSN behind a value (``Stamp``) only has to
add it. A value that was changed, or stands under another name, does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from zlib import crc32

from sharedlog._core.commit import LSN_BYTES, Put, Stamp
from sharedlog._core.errors import CorruptLog

CHECKSUM_BYTES = 8
# Keys that are read at once where all are: some have half a megabyte.
PAGE = 32
_MOST = (1 << 64) - 1
# Of a value. Names that are looked up once: the hot path has this function.
_HEAD, _TAIL = slice(None, -LSN_BYTES), slice(-LSN_BYTES, None)
_number, _packed = int.from_bytes, struct.Struct(">Q").pack


def kept(key: str, value: bytes) -> bytes:
    """Return what a store keeps under a key: the checksum and the value."""
    crc = crc32(value[_HEAD], crc_of_name(key, len(value)))
    return _packed(crc + _number(value[_TAIL], "big") & _MOST) + value


def expected(key: str, value: bytes | None) -> bytes | None:
    """Return what a store has to keep under a key for a condition on it; None: nothing."""
    return None if value is None else kept(key, value)


def sent(put: Put) -> bytes | None:
    """Return what a server is sent for a put; None: the key goes.

    Where it has a stamp, the server adds the LSN to the first 8 bytes, and puts it behind all.
    """
    if put.value is None or put.stamp is Stamp.NONE:
        return expected(put.key, put.value)
    return kept(put.key, put.value + bytes(LSN_BYTES))[:-LSN_BYTES]


def value_of(key: str, found: object) -> bytes:
    """Return the value of what a store keeps under a key; raises ``CorruptLog``."""
    if isinstance(found, bytes) and len(found) >= CHECKSUM_BYTES:
        value = found[CHECKSUM_BYTES:]
        if kept(key, value) == found:
            return value
    raise damaged_key(key)


def values_of(found: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the values of what a store keeps, None if it is nothing; see ``value_of``."""
    return {key: None if one is None else value_of(key, one) for key, one in found.items()}


def named_values(found: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """Return the values of what a store keeps under these keys; see ``value_of``."""
    values: dict[str, bytes] = {}
    for name, one in found:
        key = _key_of(name)
        values[key] = value_of(key, one)
    return values


def damage(found: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return what is wrong with keys and what a store keeps under them, in words."""
    problems: list[str] = []
    for name, one in found:
        try:
            value_of(_key_of(name), one)
        except CorruptLog as error:
            problems.append(str(error))
    return problems


def paged(page: Callable[[bytes], Sequence[tuple[bytes, bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    """Return all keys, and what a store keeps under them.

    ``page``: returns some of them that follow a name, in order; none if there are no more.
    """
    after = b""
    while pairs := page(after):
        yield from pairs
        after = pairs[-1][0]


def damaged_key(key: str) -> CorruptLog:
    """Build what is raised for a key whose checksum does not fit."""
    return CorruptLog(
        f"the log's key {key[:200]!r} is damaged: its checksum does not fit its value. Nothing "
        "can be decided by it: restore the log from a backup"
    )


# A producer's appends have the same few.
@lru_cache(maxsize=1024)
def crc_of_name(key: str, size: int) -> int:
    """Return the CRC-32 by which a checksum begins; ``size``: of the value."""
    return crc32(b"%d %s" % (size, key.encode()))


def _key_of(name: object) -> str:
    if isinstance(name, bytes):
        with suppress(UnicodeDecodeError):
            return name.decode()
    raise CorruptLog(f"a key of the log is damaged: {name!r:.200} is no name of one")
