"""Sweeping: producers that fell silent in a transaction are retired (DESIGN-LOG §13, C2).

Nobody's clock is trusted: a producer is silent when its highest seq stays the same for a time that
the sweeper measures itself, from when it first saw it. Of the sweepers of a log one works, by a
fence; the others take over when its beat stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sharedlog._core.commit import Commit, Put, Refused
from sharedlog._core.errors import Fenced
from sharedlog._core.fences import Fence, condition_of, fence_key, number_of, raise_fence
from sharedlog._core.producers import OPEN, number, seq_key
from sharedlog._core.spans import retire
from sharedlog._core.steps import Get, Rule, Scan

FENCE = "sweeper"
_BEAT = "sweeper/beat"


class Sign(NamedTuple):
    """What stays the same while nobody sweeps: the fence's number, and its holder's beat."""

    number: int
    beat: bytes | None


def sign() -> Rule[Sign]:
    """Return what there is of a sweeper."""
    key = fence_key(FENCE)
    found = yield Get((key, _BEAT))
    return Sign(number_of(found[key]), found[_BEAT])


def take_over(seen: Sign) -> Rule[Fence]:
    """Sweep from now on; the others of whom something was seen do no longer."""
    return Fence(FENCE, (yield from raise_fence(FENCE, seen.number + 1)))


def beat(fence: Fence) -> Rule[bool]:
    """Show that this sweeper works; False: another one does."""
    value = (yield Get((_BEAT,)))[_BEAT]
    more = number(1 + (0 if value is None else int.from_bytes(value, "big")))
    try:
        yield Commit((condition_of(fence),), (Put(_BEAT, more),))
    except Refused:
        return False
    return True


def unfinished() -> Rule[dict[int, int]]:
    """Return the producers that have something pending, each with its highest seq."""
    ids = [int(key.removeprefix(OPEN)) for key in (yield Scan(OPEN))]
    if not ids:
        return {}
    found: Mapping[str, bytes | None] = yield Get(tuple(seq_key(each) for each in ids))
    return {each: int.from_bytes(found[seq_key(each)] or b"", "big") for each in ids}


def retire_silent(producer: int, seq: int, fence: Fence) -> Rule[bool]:
    """Retire a producer that is still at this seq; False: it is not, or somebody else sweeps."""
    try:
        yield from retire(producer, seq=seq, fence=fence)
    except (Fenced, Refused):
        return False
    return True
