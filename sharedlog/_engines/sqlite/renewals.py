"""The file beside a log file that says until when terms were renewed.

What renews a term changes nothing of the log, so it is kept where no watch looks. It is not synced:
a term of another boot runs anew in any case (``BootTerms``). Each process writes with the log
file's lock, and reads without it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.files import open_beside
from sharedlog._core.errors import LogUnavailable
from sharedlog._engines.terms import BootClock, Term

# CRC-32 of the rest; digests of key and boot; what ``Renewed`` has.
_RECORD = struct.Struct("<I4x16s16sddd")
_CRC_BYTES = 8
# A record that is being written is whole a moment later.
_LOOKS = 5


class Renewed(NamedTuple):
    """The newest term of a key. ``began_with``: when the term in the file ends, which it renews."""

    boot: bytes
    began_with: float
    expires_at: float
    term_s: float


def digest(text: str) -> bytes:
    """Return what names a key, or a boot."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class RenewedTerms:
    """Records of one size, one for a key. Any thread: nothing is kept here between two calls."""

    def __init__(self, path: Path) -> None:
        """``path``: of the file, which the first renewal makes."""
        self._path = path

    def read(self) -> dict[bytes, Renewed]:
        """Return them by the digest of their keys; raises ``LogUnavailable``."""
        try:
            file = open_beside(self._path, os.O_RDONLY)
            try:
                for _ in range(_LOOKS):
                    records = _records(file)
                    if None not in records:
                        break
            finally:
                os.close(file)
        except FileNotFoundError:
            return {}
        except OSError as error:
            # A process that lives must not be taken for gone.
            unread = LogUnavailable(f"cannot read {self._path}: {error}")
            unread.appended = False
            raise unread from error
        return dict(each for each in records if each is not None)

    def term_of(self, found: Renewed, boot: str) -> Term:
        """Return a renewed term, as a process of this boot has it."""
        mine = found.boot == digest(boot)
        return Term(0, boot if mine else found.boot.hex(), found.expires_at, found.term_s)

    def write(
        self, began: Mapping[str, Term], renewed: Mapping[str, Term], clock: BootClock
    ) -> bool:
        """Write the newest terms of some keys; False: that was not possible.

        ``began``: all terms that the log file has.
        """
        boot = digest(clock.boot)
        mine = {
            digest(key): Renewed(boot, began[key].expires_at, term.expires_at, term.term_s)
            for key, term in renewed.items()
        }
        with suppress(OSError):
            file = open_beside(self._path, os.O_RDWR | os.O_CREAT)
            try:
                records = _records(file)
                places = {each[0]: at for at, each in enumerate(records) if each is not None}
                new = mine.keys() - places.keys()
                if new:
                    live = {digest(key): term.expires_at for key, term in began.items()}
                    places |= zip(new, _free(records, live, boot, clock.now()), strict=False)
                for name, each in mine.items():
                    data = _RECORD.pack(0, name, *each)[_CRC_BYTES:]
                    crc = zlib.crc32(data).to_bytes(_CRC_BYTES, "little")
                    if os.pwrite(file, crc + data, places[name] * _RECORD.size) < _RECORD.size:
                        return False
            finally:
                os.close(file)
            return True
        return False


def _records(file: int) -> list[tuple[bytes, Renewed] | None]:
    """Return what is there; None: it is not whole."""
    data = os.pread(file, os.fstat(file).st_size, 0)
    found: list[tuple[bytes, Renewed] | None] = []
    for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
        crc, name, *rest = _RECORD.unpack_from(data, at)
        whole = zlib.crc32(data[at + _CRC_BYTES : at + _RECORD.size]) == crc
        found.append((name, Renewed(*rest)) if whole else None)
    return found


def _free(
    records: list[tuple[bytes, Renewed] | None],
    live: Mapping[bytes, float],
    boot: bytes,
    now: float,
) -> Iterator[int]:
    """Yield places for new records: of those that say nothing any more, and behind the last."""
    for at, each in enumerate(records):
        if each is None:
            yield at
            continue
        name, found = each
        over = found.boot == boot and max(found.expires_at, found.began_with) < now
        if over or name not in live:
            yield at
    yield from itertools.count(len(records))
