"""The bytes of a row's key: how values are encoded in it, and how it is shown. Pure.

Each value has a tag of one byte and, where the tag does not say its size, its length.
Encoded values of more than 64 bytes are hashed, under a tag of its own.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
from collections.abc import Callable

# Longer ones would cost the store more than their hash does.
MAX_ENCODED_BYTES = 64
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HASHES = {b"h": "sha256", b"*": "whole row, sha256"}
_HASH_BYTES = 33


def key_of(encoded: bytes) -> bytes:
    """Return the key made of encoded values: they themselves, or their hash if they are long."""
    if len(encoded) <= MAX_ENCODED_BYTES:
        return encoded
    return b"h" + hashlib.sha256(encoded).digest()


def whole_row_key(digest: bytes) -> bytes:
    """Return the key of a row that is identified by the SHA-256 of all it says."""
    return b"*" + digest


def encode_packed_integers(data: bytes) -> list[bytes]:
    """Encode integers that lie one after the other, 8 bytes each, big-endian."""
    return [b"i" + data[at : at + 8] for at in range(0, len(data), 8)]


def encode_text(utf8: bytes) -> bytes:
    """Encode a string, which is given as its UTF-8."""
    return with_size(b"s", utf8)


def encode_bytes(value: bytes) -> bytes:
    """Encode a binary value."""
    return with_size(b"b", bytes(value))


def encode_boolean(value: bool) -> bytes:
    """Encode a boolean."""
    return b"t" if value else b"f"


def encode_date(days: int) -> bytes:
    """Encode a date, which is given in days since 1970."""
    return b"d" + days.to_bytes(4, "big", signed=True)


def encode_instant(micros: int) -> bytes:
    """Encode a timestamp with a time zone: an instant."""
    return b"z" + micros.to_bytes(8, "big", signed=True)


def encode_local_time(micros: int) -> bytes:
    """Encode a timestamp without a time zone: a reading of some clock."""
    return b"n" + micros.to_bytes(8, "big", signed=True)


def encode_decimal(value: decimal.Decimal) -> bytes:
    """Encode a decimal: 1.50 and 1.5 are one number, whatever scale a column has."""
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)))
    place = int(exponent)
    if number == 0:
        return with_size(b"m", b"0")
    while number % 10 == 0:
        number //= 10
        place += 1
    return with_size(b"m", f"{'-' if sign else ''}{number}e{place}".encode())


def with_size(tag: bytes, data: bytes) -> bytes:
    """Return a tag, a length and the data: what follows may hold any byte."""
    size = len(data)
    if size < 255:
        return tag + bytes((size,)) + data
    return tag + b"\xff" + size.to_bytes(4, "big") + data


def show_key(key: bytes) -> str:
    """Return the values of a key, with a comma between; hexadecimal if it is not rifl's."""
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
