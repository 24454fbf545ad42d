"""Fences: named numbers that keep zombies out (DESIGN-LOG §12, L4)."""

from __future__ import annotations

import re
from typing import NamedTuple

from sharedlog._core.arguments import check_whole, shown
from sharedlog._core.calling import portable
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import Fenced, InvalidRequest
from sharedlog._core.steps import Get, Rule

MAX_NUMBER = (1 << 63) - 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,179}")


class Fence(NamedTuple):
    """A fencing token of appends: a fence's name, and the number to which its writer raised it."""

    name: str
    number: int


def check_fence_name(name: str) -> None:
    """Raise ``InvalidRequest`` unless this can name a fence."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{shown(name)} cannot name a fence: 1 to 180 letters, digits, _ . / : -, "
            "beginning with one of the first three"
        )


def check_given(fence: Fence | None) -> None:
    """Raise ``InvalidRequest`` unless this is a fence that was raised, or None."""
    if fence is None:
        return
    if not isinstance(fence, Fence):
        raise InvalidRequest(f"fence={shown(fence)}: it is what log.raise_fence returned")
    check_fence_name(fence.name)
    check_whole(fence.number, "fence.number", 0, MAX_NUMBER)


def fence_key(name: str) -> str:
    """Return the key of a fence's number."""
    return f"fence/{name}"


def condition_of(fence: Fence) -> Condition:
    """Return a condition that holds until the fence is raised further."""
    return Condition(fence_key(fence.name), fence.number.to_bytes(8, "big"))


def check_fence(fence: Fence, value: bytes | None) -> None:
    """Raise ``Fenced`` unless the fence's value is this number."""
    number = number_of(value)
    if number != fence.number:
        raise Fenced(
            f"fence {fence.name!r} is at {number}, this writer holds {fence.number}: "
            "another writer took over",
            number,
        )


def number_of(value: bytes | None) -> int:
    """Return the number that a fence's key holds; 0: it was never raised."""
    return 0 if value is None else int.from_bytes(value, "big")


@portable
def raise_fence(name: str, at_least: int = 0) -> Rule[int]:
    """Raise a fence by one, or to ``at_least`` if that is more, and return its number.

    From the return on nothing under a lower number is written. Run again after a lost reply it
    raises the fence once more, which does no harm: numbers need not be dense.
    """
    key = fence_key(name)
    while True:
        value = (yield Get((key,)))[key]
        number = max(number_of(value) + 1, at_least)
        put = Put(key, number.to_bytes(8, "big"))
        try:
            yield Commit((Condition(key, value),), (put,))
        except Refused:
            continue
        return number
