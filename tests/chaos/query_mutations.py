"""Rules of DESIGN-LOG §16, each broken on purpose, for the simulator to find.

``tests/chaos/mutations.py`` has them in its table.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sharedlog._core import ranges, sweeping
from sharedlog._core.commit import Commit, Condition
from sharedlog._core.query import attempt, cleaning, closing, joining, state, tasks
from sharedlog._core.query.state import Query, Ticket
from sharedlog._core.steps import Get

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]


def _of_row(condition: Condition) -> bool:
    return condition.key.startswith(state.QUERIES)


def _admits(change: Callable[[Ticket, Query], Query]) -> _Patch:
    """Have tickets judged by another state of their query than it has."""
    original = state.admitted
    return unittest.mock.patch.object(
        joining, "admitted", lambda ticket, found: original(ticket, change(ticket, found))
    )


def append_not_conditional() -> _Patch:
    original = tasks.pend_under
    return unittest.mock.patch.object(
        tasks,
        "pend_under",
        lambda *args, conditions=(), **named: original(*args, **named),
    )


def marker_not_conditional() -> _Patch:
    def commit(conditions: Any = (), puts: Any = (), entries: Any = (), at_us: int = 0) -> Commit:
        if entries:
            conditions = tuple(each for each in conditions if not _of_row(each))
        return Commit(conditions, puts, entries, at_us)

    return unittest.mock.patch.object(closing, "Commit", commit)


def closed_batch_open_again() -> _Patch:
    def change(ticket: Ticket, found: Query) -> Query:
        if found.closed == ticket.batch and found.plan < ticket.plan:
            return found._replace(closed=ticket.batch - 1)
        return found

    return _admits(change)


def older_plan_in() -> _Patch:
    return _admits(
        lambda ticket, found: found._replace(plan=min(found.plan, ticket.plan - 1), deposed=())
    )


def runs_forgotten() -> _Patch:
    return _admits(lambda _, found: found._replace(deposed=()))


def lower_batch_in() -> _Patch:
    def change(ticket: Ticket, found: Query) -> Query:
        lower = ticket.batch < found.closed
        return found._replace(closed=ticket.batch - 1) if lower else found

    return _admits(change)


def checkpoints_not_told_apart() -> _Patch:
    return unittest.mock.patch.object(state, "_elsewhere", return_value=False)


def live_plan_cleaned() -> _Patch:
    """Whoever is in has the producers of the plan that is in removed."""

    def clean(name: str) -> Any:
        there = yield from tasks.members(name)
        yield from cleaning._remove(there, set())
        return len(there)

    return unittest.mock.patch.object(joining, "clean", clean)


def not_cleaned() -> _Patch:
    def clean(name: str) -> Any:
        yield Get((state.query_key(name),))
        return 0

    return unittest.mock.patch.object(closing, "clean", clean)


def abandoned_without_its_row() -> _Patch:
    """What a silent plan has pending is rolled back, and its tasks may go on."""

    def abandon(name: str, plan: int, fence: Any = None) -> Any:
        there = yield from tasks.members(name)
        yield from cleaning._remove([each for each in there if each.plan == plan], set())
        return True

    return unittest.mock.patch.object(sweeping, "abandon", abandon)


def forgotten_rows_removed() -> _Patch:
    """Of a query that is forgotten nothing is kept."""
    original = closing._end
    return unittest.mock.patch.object(
        closing, "_end", lambda name, *, kept: original(name, kept=False)
    )


def writes_begun_whatever_was_drawn() -> _Patch:
    """The row of a write is made whether its plan was drawn before or not."""

    def commit(conditions: Any = (), puts: Any = (), entries: Any = (), at_us: int = 0) -> Commit:
        return Commit((), puts, entries, at_us) if len(puts) > 1 else Commit(conditions, puts)

    return unittest.mock.patch.object(joining, "Commit", commit)


def replays_appended() -> _Patch:
    """A task of a batch that is committed is not told so."""
    original = attempt.join

    def join(ticket: Ticket) -> Any:
        joined = yield from original(ticket)
        return joined._replace(committed=False)

    return unittest.mock.patch.object(attempt, "join", join)


def range_without_an_end() -> _Patch:
    return unittest.mock.patch.object(
        ranges.RangeReader, "_within", lambda self, messages: iter(messages)
    )


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a task's append not conditional on its query", "§16", append_not_conditional, 6),
    ("a batch's marker not conditional on its query", "§16", marker_not_conditional, 1),
    ("a committed batch open again", "§16", closed_batch_open_again, 1),
    ("a task that is not told of the commit", "§16", replays_appended, 13),
    ("an older plan is in again", "§16", older_plan_in, 1),
    ("a run that was followed is in again", "§16", runs_forgotten, 7),
    ("a batch below the last one", "§16", lower_batch_in, 5),
    ("a batch of another checkpoint", "§16", checkpoints_not_told_apart, 1),
    ("producers of a live plan removed", "§16", live_plan_cleaned, 1),
    ("producers of late tasks kept", "§16", not_cleaned, 1),
    ("a plan abandoned without its query", "§16", abandoned_without_its_row, 17),
    ("a forgotten query begun anew by who is late", "§16", forgotten_rows_removed, 13),
    ("a write begun anew by a late copy", "§16", writes_begun_whatever_was_drawn, 5),
    ("a range read behind its end", "§16", range_without_an_end, 1),
)
