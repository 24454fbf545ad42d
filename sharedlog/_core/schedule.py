"""The one of several processes that trims on a schedule (DESIGN-LOG §12, L4, L6).

``*trimmer``, which no user can name, has when the one under the fence of this name was there
last. Whoever finds that too long ago raises the fence; the one before is fenced from then on,
whatever it is doing.
"""

from __future__ import annotations

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.fences import Fence, fence_key, number_of
from sharedlog._core.steps import Get, Rule

_NAME = "*trimmer"


def take_turn(held: Fence | None, now_us: int, patience_us: int) -> Rule[Fence | None]:
    """Say that the holder of this fence is there, or take over from one that is not.

    Returns the fence to trim under; None: another one is there. Run again after a lost reply it
    may wait for its own patience, once.
    """
    key = fence_key(_NAME)
    while True:
        found = yield Get((key, _NAME))
        number = number_of(found[key])
        seen_us = int.from_bytes(found[_NAME] or b"", "big")
        mine = held is not None and held.number == number
        if not mine and found[_NAME] is not None and now_us - seen_us <= patience_us:
            return None
        fence = Fence(_NAME, number if mine else number + 1)
        try:
            yield Commit(
                (Condition(key, found[key]), Condition(_NAME, found[_NAME])),
                (
                    Put(key, fence.number.to_bytes(8, "big")),
                    Put(_NAME, max(now_us, seen_us).to_bytes(8, "big")),
                ),
            )
        except Refused:
            continue
        return fence


def leave(held: Fence) -> Rule[None]:
    """Let the next one take over at once."""
    key = fence_key(held.name)
    found = yield Get((key, _NAME))
    if number_of(found[key]) == held.number and found[_NAME] is not None:
        try:
            yield Commit(
                (Condition(key, found[key]), Condition(_NAME, found[_NAME])), (Put(_NAME, None),)
            )
        except Refused:
            return
