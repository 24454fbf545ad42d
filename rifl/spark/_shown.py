"""Keys as people read them: what ``rifl.spark._keys`` encodes, the other way round. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HASHES = {b"h": "sha256", b"*": "whole row, sha256"}
_HASH_BYTES = 33


def show_key(key: bytes) -> str:
    """Return the values of a key, with a comma between; hexadecimal where it is none of ours."""
    tag = key[:1]
    if tag in _HASHES and len(key) == _HASH_BYTES:
        return f"{_HASHES[tag]} {key[1:].hex()}"
    try:
        return ", ".join(_values(key))
    except (ValueError, LookupError, OverflowError):
        return f"0x{key.hex()}"


def _values(key: bytes) -> list[str]:
    shown: list[str] = []
    rest = key
    while rest:
        tag, rest = rest[:1], rest[1:]
        if tag in b"sbm":
            size, rest = rest[0], rest[1:]
            if size == 255:
                size, rest = int.from_bytes(rest[:4], "big"), rest[4:]
        else:
            size = _SIZES[tag]
        if len(rest) < size:
            raise ValueError("cut off")
        shown.append(_SHOWN[tag](rest[:size]))
        rest = rest[size:]
    return shown


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _date(data: bytes) -> str:
    return (_EPOCH + datetime.timedelta(days=_number(data))).date().isoformat()


def _time(data: bytes) -> str:
    return (_EPOCH + datetime.timedelta(microseconds=_number(data))).isoformat(" ")


_SIZES = {b"i": 8, b"t": 0, b"f": 0, b"d": 4, b"n": 8, b"z": 8}
_SHOWN: dict[bytes, Callable[[bytes], str]] = {
    b"i": lambda data: str(_number(data)),
    b"s": lambda data: repr(data.decode()),
    b"b": lambda data: f"0x{data.hex()}",
    b"m": bytes.decode,
    b"t": lambda _: "true",
    b"f": lambda _: "false",
    b"d": _date,
    b"n": lambda data: _time(data).removesuffix("+00:00"),
    b"z": _time,
}
