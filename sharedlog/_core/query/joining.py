"""The joining of a batch: a plan is in unless a newer one is (DESIGN-LOG §16)."""

from __future__ import annotations

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.fences import fence_key, number_of
from sharedlog._core.producers import number
from sharedlog._core.query.cleaning import clean
from sharedlog._core.query.state import (
    PLANS,
    WRITE,
    Joined,
    PlanState,
    Query,
    Ticket,
    admitted,
    late,
    query_key,
    query_of,
)
from sharedlog._core.steps import Get, Rule
from sharedlog._core.streams import check_name


def join(ticket: Ticket) -> Rule[Joined]:
    """Have a query's row say that this plan is in, unless a newer one is; run again it is.

    Every task does so before it appends, one without rows too, and who commits (``closing``).
    Raises ``Fenced`` for a plan or a run that another one followed, and for a batch that is being
    committed; ``CheckpointWentBack``, ``PredecessorMismatch``.
    """
    check_name(ticket.name, "query")
    key, undone = query_key(ticket.name), 0
    while True:
        value = (yield Get((key,)))[key]
        if value is None and ticket.made:
            raise late(ticket)
        found = Query(ticket.name) if value is None else query_of(ticket.name, value)
        after = admitted(ticket, found)
        if value is not None and after == found:
            return Joined(found, value, found.closed == ticket.batch)
        if found.lsn and after.state is not PlanState.CLOSED:
            # While it is known which of them the last marker names.
            undone += yield from clean(ticket.name)
        after = after._replace(undone=after.undone + undone)
        now = after.value()
        try:
            yield Commit((Condition(key, value),), (Put(key, now),))
        except Refused:
            continue
        return Joined(after, now, after.closed == ticket.batch)


def begin_write(name: str) -> Rule[int]:
    """Draw a plan for a write, and make its row, in one step; ``name``: used by no other write.

    Its tickets have the identity ``WRITE``.
    A copy of that step that comes late finds the number drawn, so that a row which was removed
    meanwhile is not there again. Run again after a lost reply it draws another number.
    """
    check_name(name, "query")
    plans = fence_key(PLANS)
    while True:
        drawn = (yield Get((plans,)))[plans]
        plan = number_of(drawn) + 1
        row = Query(name, PlanState.OPEN, WRITE, plan=plan, batch=0)
        puts = (Put(plans, number(plan)), Put(query_key(name), row.value()))
        try:
            yield Commit((Condition(plans, drawn),), puts)
        except Refused:
            continue
        return plan
