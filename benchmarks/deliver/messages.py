"""The messages: their numbers, and which target each is for."""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = [
    "APPLY",
    "EVERYBODY",
    "KEYS",
    "SERVICE",
    "START",
    "TOKEN",
    "body_of",
    "number_of",
    "shares",
    "small",
    "stream_of",
]

SERVICE = "bench.Target"
# An atomic method that writes what it gets, and one that has no effect.
APPLY, START = f"/{SERVICE}/Apply", f"/{SERVICE}/Start"
# What the player shows to targets.
TOKEN = "bench"  # noqa: S105 - of the benchmark
# The stream that several targets follow.
EVERYBODY = "everybody"
# Of a transaction: so many, of a kilobyte each.
KEYS = 10
_NUMBER = struct.Struct(">q")
_KILOBYTE, _SMALL = bytes(1024 - _NUMBER.size), bytes(100 - _NUMBER.size)


def body_of(number: int) -> bytes:
    """Return a message of a kilobyte."""
    return _NUMBER.pack(number) + _KILOBYTE


def small() -> bytes:
    """Return one of a hundred bytes; its number is below 0: nothing asks when it came."""
    return _NUMBER.pack(-1) + _SMALL


def number_of(body: bytes) -> int:
    """Return a message's number."""
    found: int = _NUMBER.unpack_from(body)[0]
    return found


def stream_of(target: int) -> str:
    """Return the stream, or the topic, of what is for one target."""
    return f"target{target}"


def shares(first: int, targets: int) -> dict[int, Sequence[int]]:
    """Return the numbers of a transaction's keys by their targets: one after the other."""
    found: dict[int, list[int]] = {}
    for number in range(first, first + KEYS):
        found.setdefault(number % targets, []).append(number)
    return dict(found)
