"""The closing of a batch: its tasks can append no more, their writes are validated, then decided.

Where its tasks are few, the marker is conditional on their seqs, and removes their producers in the
same step. Else the row goes from open to closing, which freezes every task's producer at once; the
marker is then conditional on that row alone, however many producers and substreams it names
(DESIGN-LOG §18).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused, Stamp
from sharedlog._core.entry import EntryKind, ProducerDecision
from sharedlog._core.errors import Fenced, InvalidRequest, SpanGone
from sharedlog._core.fences import Fence, condition_of
from sharedlog._core.producers import (
    number,
    seq_key,
)
from sharedlog._core.query.cleaning import (
    OPERATIONS,
    Spans,
    clean,
    left_over,
    open_spans,
    removal,
)
from sharedlog._core.query.joining import join
from sharedlog._core.query.state import (
    PlanState,
    Query,
    Ticket,
    by_name,
    draw_plan,
    find_query,
    late,
    query_key,
)
from sharedlog._core.query.tasks import member_key
from sharedlog._core.spans import begin_of, marker, ordered
from sharedlog._core.steps import Get, Rule

# Producers whose keys are asked for together.
_PIECE = 30


class BatchSummary(NamedTuple):
    """What the tasks of a batch tell who commits it.

    ``decisions``: of each task that appended something, its producer, its highest seq and where
    it began, by tag. ``content``: the sum of what tells rows, so that no order matters.
    ``replayed``: they were told that the batch is committed, and have appended nothing.
    ``entries``: how many they appended, to which ``stream``.
    """

    decisions: tuple[ProducerDecision, ...] = ()
    rows: int = 0
    content: int = 0
    replayed: bool = False
    entries: int = 0
    stream: str = ""


class Closed(NamedTuple):
    """A batch that is committed: the query, and whether an earlier commit did it.

    ``undone``: attempts of tasks that had appended, and that it did not name.
    """

    query: Query
    again: bool
    undone: int = 0


def close(ticket: Ticket, batch: BatchSummary, *, at_once: int = OPERATIONS) -> Rule[Closed]:
    """Commit a batch by one marker, with everything that its tasks appended, and nothing else.

    Run again, by any program with this ticket, it finds that it did. A batch without rows writes no
    entry. ``at_once``: conditions and puts that one step may have. Raises ``Fenced`` if another
    plan took over, ``SpanGone`` if what is pending is not what the tasks told, and as ``join``.
    """
    key = query_key(ticket.name)
    while True:
        found, value = yield from _joined(ticket)
        if found.closed == ticket.batch:
            if not batch.replayed and found.closed_by != ticket.plan:
                raise Fenced(
                    f"batch {ticket.batch} of {ticket.name!r} was committed by another plan, "
                    f"{found.closed_by}; nothing of this one's is",
                    found.plan,
                )
            yield from clean(ticket.name)
            return Closed(found, again=True)
        if batch.replayed:
            raise Fenced(f"batch {ticket.batch} of {ticket.name!r} is open again", found.plan)
        conditions, removals = _in_one_step(ticket, batch.decisions, at_once)
        if found.state is PlanState.OPEN and batch.decisions and not removals:
            found = found._replace(state=PlanState.CLOSING)
            try:
                yield Commit((Condition(key, value),), (Put(key, found.value()),))
            except Refused:
                continue
            value = found.value()
        try:
            spans = yield from _validate(ticket, batch.decisions)
        except SpanGone:
            if (yield Get((key,)))[key] == value:
                raise
            # Abandoned meanwhile, and cleaned: the row says so.
            continue
        named = {each.producer for each in batch.decisions}
        undone = yield from left_over(ticket.name, named, spans)
        after = found._replace(
            state=PlanState.CLOSED,
            closed=ticket.batch,
            closed_by=ticket.plan,
            closed_run=found.run,
            rows=batch.rows,
            content=batch.content,
            checkpoint=ticket.checkpoint,
            batches=found.batches + 1,
            all_rows=found.all_rows + batch.rows,
            entries=found.entries + batch.entries,
            undone=found.undone + undone,
            stream=batch.stream,
            lsn=0,
        )
        commit = Commit((Condition(key, value),), (Put(key, after.value()),))
        if batch.decisions:
            entry = marker(
                EntryKind.MARKER,
                0,
                ticket.batch + 1,
                ordered(batch.decisions),
                by_name(ticket.name),
            )
            put = Put(key, after.value(stamped=True), Stamp.LAST)
            commit = Commit((*commit.conditions, *conditions), (put, *removals), (entry,))
        try:
            lsns = yield commit
        except Refused:
            continue
        yield from clean(ticket.name)
        lsn = lsns.last if batch.decisions else 0
        return Closed(after._replace(lsn=lsn), again=False, undone=undone)


def abandon(name: str, plan: int, fence: Fence | None = None) -> Rule[bool]:
    """Have a plan's tasks append no more, and roll back what they did; False: a newer one is in.

    Of who is in that is refused from then on, commit included: its batch is planned again.
    """
    key = query_key(name)
    under = () if fence is None else (condition_of(fence),)
    while True:
        query = yield from find_query(name)
        if query is None or query.plan != plan:
            yield from clean(name)
            return False
        if query.state in (PlanState.OPEN, PlanState.CLOSING):
            undone = yield from left_over(name, (), (yield from open_spans()))
            after = query._replace(state=PlanState.ABANDONED, undone=query.undone + undone)
            try:
                yield Commit((Condition(key, query.value()), *under), (Put(key, after.value()),))
            except Refused as refused:
                if refused.found[key] == query.value():
                    raise
                continue
        yield from clean(name)
        return True


def forget(name: str) -> Rule[Query | None]:
    """Forget a query, and roll back what it has pending; what it commits again is there twice.

    Runs that were in, and plans that were drawn before, do not begin it anew: if they are late
    they get ``Fenced``. Of a write that has a name of its own nothing is kept. None: there is no
    such query.
    """
    return (yield from _end(name, kept=True))


def remove_write(name: str) -> Rule[Query | None]:
    """Remove what is kept of a write that ``begin_write`` began, and roll back what is pending."""
    return (yield from _end(name, kept=False))


def _end(name: str, *, kept: bool) -> Rule[Query | None]:
    key = query_key(name)
    while True:
        query = yield from find_query(name)
        if query is None:
            return None
        yield from abandon(name, query.plan)
        query = yield from find_query(name)
        if query is None or query.state in (PlanState.OPEN, PlanState.CLOSING):
            continue
        keeps = kept and not query.made
        after = query.forget((yield from draw_plan())).value() if keeps else None
        try:
            yield Commit((Condition(key, query.value()),), (Put(key, after),))
        except Refused:
            continue
        return query


def _in_one_step(
    ticket: Ticket, decisions: Sequence[ProducerDecision], most: int
) -> tuple[list[Condition], list[Put]]:
    """Return what makes marker and removal of few producers one step; none for many.

    Conditions on their seqs stand for the freeze: with an append of theirs its seq has moved, and
    what they have pending changes with nothing else.
    """
    conditions = [Condition(seq_key(each.producer), number(each.through)) for each in decisions]
    puts = [
        put
        for each in decisions
        for put in removal(ticket.name, ticket.plan, each.producer, each.begins)
    ]
    if 2 + len(conditions) + len(puts) > most:
        return [], []
    return conditions, puts


def _joined(ticket: Ticket) -> Rule[tuple[Query, bytes]]:
    """Return the query that a ticket commits for, also while it is being committed."""
    found = yield from find_query(ticket.name)
    if found is None:
        # Its tasks have joined.
        raise late(ticket)
    if (found.closed, found.closed_by) == (ticket.batch, ticket.plan):
        # As an append is answered before its fence is judged.
        return found, found.value()
    if (found.plan, found.batch, found.state) == (ticket.plan, ticket.batch, PlanState.CLOSING):
        return found, found.value()
    joined = yield from join(ticket)
    return joined.query, joined.value


def _validate(ticket: Ticket, decisions: Sequence[ProducerDecision]) -> Rule[Spans]:
    """Return what is pending.

    Raises ``SpanGone`` unless these producers have pending exactly what is said of them.
    """
    if len({each.producer for each in decisions}) < len(decisions):
        raise InvalidRequest("a batch decides each of its producers once")
    spans = yield from open_spans()
    for first in range(0, len(decisions), _PIECE):
        piece = decisions[first : first + _PIECE]
        keys = {
            each.producer: (
                member_key(ticket.name, ticket.plan, each.producer),
                seq_key(each.producer),
            )
            for each in piece
        }
        found = yield Get(tuple(key for both in keys.values() for key in both))
        for each in piece:
            mine, seq = keys[each.producer]
            begins = {tag: begin_of(value) for tag, value in spans.get(each.producer, {}).items()}
            if not begins or begins != dict(each.begins):
                problem = "other spans"
            elif found[mine] is None or found[seq] != number(each.through):
                problem = "other entries"
            else:
                continue
            raise SpanGone(
                f"task producer {each.producer} of {ticket.name!r} has {problem} pending than its "
                "task told"
            )
    return spans
