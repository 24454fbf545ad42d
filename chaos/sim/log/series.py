"""Oracle: a series of lives of one follower, whose reading is held against what there is."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Begins", "Delivered", "Life", "judge_series"]

# An envelope, and the LSN that committed it.
Delivered = tuple[bytes, int]


class Begins(enum.Enum):
    """Where a life of a follower begins."""

    WHOLE = "with whatever is whole"
    HOLD = "at its hold"
    EITHER = "at the hold that a copy has, if it has one"


@dataclass(slots=True)
class Life:
    """What one life of a follower read, or several that went on exactly.

    ``whole``: the log was whole from there on when it began, or sooner. ``confirmed``: how many
    the log knows to be done.
    """

    begins: Begins
    whole: int = 1
    read: list[Delivered] = field(default_factory=list)
    confirmed: int = 0


def judge_series(
    lives: Sequence[Life], there: Sequence[Delivered], most: int, *, ended: bool
) -> tuple[int, list[str]]:
    """Return up to where a follower has read what there is, and what is wrong with that.

    ``most``: up to where it had read a log of which this one is a copy. ``ended``: it has to
    have read everything.
    """
    problems = []
    # Through what it has read, and behind what it had done: two messages may look alike.
    places, whole = {(most, 0)}, 1
    for life in lives:
        count = len(life.read)
        if life.begins is not Begins.HOLD:
            whole = life.whole
        found = set()
        for through, done in places:
            for at in _starts(life, there, through, done):
                if list(there[at : at + count]) == life.read:
                    found.add((max(through, at + count), max(done, at + life.confirmed)))
        if not found:
            through, done = max(places)
            start = _starts(life, there, through, done)[0]
            problems.append(_difference(life.read, there, start))
            found = {(max(through, start + count), start)}
        places = found
    most = max(places)[0]
    if ended and any(lsn >= whole for _, lsn in there[most:]):
        problems.append(f"{most} of {len(there)}, and no more")
    return most, problems


def _difference(read: list[Delivered], there: Sequence[Delivered], start: int) -> str:
    expected = there[start : start + len(read)]
    pairs = zip(read, expected, strict=False)
    at = next((at for at, (a, b) in enumerate(pairs) if a != b), len(expected))
    return f"{read[at : at + 1]} as number {start + at + 1}, not {expected[at : at + 1]}"


def _starts(life: Life, there: Sequence[Delivered], through: int, done: int) -> list[int]:
    """Return where a life may begin that follows others."""
    starts: list[int] = []
    if life.begins is not Begins.HOLD:
        starts.append(_first_whole(life, there, through if life.begins is Begins.WHOLE else 0))
    if life.begins is not Begins.WHOLE:
        starts += range(through, min(done, through) - 1, -1)
    return starts


def _first_whole(life: Life, there: Sequence[Delivered], start: int) -> int:
    """Return where a life begins that reads whatever is whole; what was trimmed it does not."""
    first = life.read[:1]
    while start < len(there) and there[start][1] < life.whole and [there[start]] != first:
        start += 1
    return start
