"""Sweeping: producers that fell silent in a transaction are retired (DESIGN-LOG §13, C2).

A producer with a home is left alone: only its store knows its outcome (``homes``).
No clock is trusted: a producer is silent when its highest seq stays the same for a time that
the sweeper measures itself, from when it first saw it, while it could look. One of the sweepers
of a log works (``duty``). The producers of one plan of a query are silent together, when none of
them shows any sign of life. A write without a name, whose driver would have removed its row, is
silent when that stays the same for long and no task of it has a producer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import Fenced
from sharedlog._core.fences import Fence, condition_of
from sharedlog._core.homes import homed_key
from sharedlog._core.producers import FIRST_TASK, OPEN, seq_key
from sharedlog._core.query.closing import abandon
from sharedlog._core.query.state import Query, all_queries, query_key
from sharedlog._core.query.tasks import members
from sharedlog._core.spans import retire
from sharedlog._core.steps import Get, Rule, Scan

_Who = TypeVar("_Who", bound=Hashable)
_Sign = TypeVar("_Sign")
# Of a query, by its name and the plan's number; of each task its producer, and what it did.
Plan = tuple[str, int]
Signs = frozenset[tuple[int, int, bytes | None]]
_PIECE = 100
# Part of the time after which a producer is silent that may pass between two looks.
_BLIND = 0.5


class Silences(Generic[_Who, _Sign]):
    """What one sweeper saw of producers that have something pending, and since when."""

    def __init__(self, silent_s: float) -> None:
        """Nothing was seen yet."""
        self._silent_s = silent_s
        self._seen: dict[_Who, tuple[_Sign, float]] = {}
        self._looked_s = 0.0

    def look(self, there: Mapping[_Who, _Sign], now_s: float) -> dict[_Who, _Sign]:
        """Note producers with their highest seqs (or plans, with theirs); return the silent ones.

        Time in which this sweeper could not look does not count: the log did not answer producers
        either, or this process was stopped, maybe with them.
        """
        if now_s - self._looked_s > _BLIND * self._silent_s:
            self._seen = {}
        self._looked_s = now_s
        before = self._seen
        self._seen = {
            producer: seen
            if (seen := before.get(producer)) is not None and seen[0] == seq
            else (seq, now_s)
            for producer, seq in there.items()
        }
        return {
            producer: seq
            for producer, (seq, since) in self._seen.items()
            if now_s - since >= self._silent_s
        }


def unfinished() -> Rule[dict[int, int]]:
    """Return the producers that have something pending, each with its highest seq.

    Not those whose home is a consumer's store: what it has committed must not be rolled back.
    """
    opened = [int(key.removeprefix(OPEN)) for key in (yield Scan(OPEN))]
    ids = [each for each in opened if each < FIRST_TASK]
    if not ids:
        return {}
    keys = [key for each in ids for key in (seq_key(each), homed_key(each))]
    found: Mapping[str, bytes | None] = yield Get(tuple(keys))
    return {
        each: int.from_bytes(found[seq_key(each)] or b"", "big")
        for each in ids
        if found[homed_key(each)] is None
    }


def unfinished_plans() -> Rule[dict[Plan, Signs]]:
    """Return the plans of queries that have tasks' producers, each with all their signs of life."""
    there = yield from members()
    if not there:
        return {}
    seqs: dict[str, bytes | None] = {}
    for first in range(0, len(there), _PIECE):
        piece = there[first : first + _PIECE]
        seqs |= yield Get(tuple(seq_key(each.id) for each in piece))
    signs: dict[Plan, Signs] = {}
    for each in there:
        sign = (each.id, each.signs, seqs[seq_key(each.id)])
        plan = (each.name, each.plan)
        signs[plan] = signs.get(plan, frozenset()) | {sign}
    return signs


def left_writes() -> Rule[dict[str, Query]]:
    """Return the writes without a name that are there and have no task's producer.

    A driver that lives has not begun its tasks, or is about to remove what it committed; of tasks
    that were silent ``abandon_silent`` has removed the producers.
    """
    made = {each.name: each for each in (yield from all_queries()) if each.made}
    if made:
        for member in (yield from members()):
            made.pop(member.name, None)
    return made


def abandon_silent(plan: Plan, fence: Fence) -> Rule[bool]:
    """Abandon a plan that is in, or what an older one left; False: another sweeper does."""
    try:
        yield from abandon(*plan, fence=fence)
    except (Fenced, Refused):
        return False
    return True


def remove_silent(write: Query, fence: Fence) -> Rule[bool]:
    """Remove the unchanged row of a write; False: it has changed, or another sweeper works.

    A task that begins in that moment has a producer, which is of no use, and is swept by itself.
    """
    key = query_key(write.name)
    conditions = (Condition(key, write.value()), condition_of(fence))
    try:
        yield Commit(conditions, (Put(key, None),))
    except Refused:
        return False
    return True


def retire_silent(producer: int, seq: int, fence: Fence) -> Rule[bool]:
    """Retire a producer that is still at this seq; False: it is not, or another sweeper works."""
    try:
        yield from retire(producer, seq=seq, fence=fence)
    except (Fenced, Refused):
        return False
    return True
