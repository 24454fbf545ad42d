"""The tasks of a query: each attempt has a producer of its own, of its plan's group (§16).

``query-task/NAME/PLAN/ID`` is there from the grant until the batch is decided and counts the
task's signs of life. A producer of a task is removed with its batch; ids are never given again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused, Stamp
from sharedlog._core.entry import EntryKind
from sharedlog._core.errors import Fenced, LogError, UnknownProducer
from sharedlog._core.producers import (
    FIRST_TASK,
    NewMessage,
    ProducerId,
    answer_key,
    fingerprint_of,
    identity_key,
    identity_of,
    number,
    seq_key,
)
from sharedlog._core.query.state import (
    Joined,
    Ticket,
    admitted,
    by_name,
    late,
    query_key,
    query_of,
)
from sharedlog._core.spans import Pended, pend_under, pended
from sharedlog._core.steps import Get, Lsns, Rule, Scan

TASKS = "query-task/"
# How many tasks were granted a producer.
_GRANTED = "query-tasks"


class Task(NamedTuple):
    """One attempt of a task: its ticket, the query's row as it found it, its producer."""

    ticket: Ticket
    row: bytes
    producer: ProducerId


class Member(NamedTuple):
    """A task's producer as the log keeps it; ``signs``: how often it showed that it is there."""

    name: str
    plan: int
    id: int
    signs: int


def member_key(name: str, plan: int, producer: int) -> str:
    """Return the key of a task's producer, among those of its query."""
    return f"{TASKS}{name}/{plan}/{producer}"


def members(name: str | None = None) -> Rule[list[Member]]:
    """Return the producers of a query's tasks, or of all queries', that were not removed."""
    found: Mapping[str, bytes] = yield Scan(TASKS if name is None else f"{TASKS}{name}/")
    return [_member(key, found[key]) for key in sorted(found)]


def grant_task(joined: Joined, ticket: Ticket, token: bytes) -> Rule[Task]:
    """Make a producer for a task of a batch that is open; raises ``Fenced`` if it is not.

    Run again after a lost reply it makes another; the first is removed with the batch.
    """
    task, _ = yield from _granted(joined, ticket, token, ())
    return task


def begin_task(
    joined: Joined, ticket: Ticket, token: bytes, messages: Sequence[NewMessage]
) -> Rule[tuple[Task, Pended]]:
    """Make a producer as ``grant_task`` does, and append its first messages, in one step.

    Run again after a lost reply it makes another, which appends them again: the first is in no
    result, so that it is rolled back with the batch.
    """
    task, lsns = yield from _granted(joined, ticket, token, messages)
    tags = {tag for each in messages for tag in each.tags}
    return task, Pended(lsns.last, dict.fromkeys(tags, lsns.first))


def _granted(
    joined: Joined, ticket: Ticket, token: bytes, messages: Sequence[NewMessage]
) -> Rule[tuple[Task, Lsns]]:
    key = query_key(ticket.name)
    while True:
        value = (yield Get((_GRANTED,)))[_GRANTED]
        count = 1 + (0 if value is None else int.from_bytes(value, "big"))
        granted = FIRST_TASK + count
        puts = [
            Put(_GRANTED, number(count)),
            Put(identity_key(granted), identity_of(1, token)),
            Put(seq_key(granted), number(1 if messages else 0)),
            Put(member_key(ticket.name, ticket.plan, granted), number(0)),
        ]
        step = Commit()
        if messages:
            # This producer is new: its keys are not there.
            tags = sorted({tag for each in messages for tag in each.tags})
            step = pended(granted, 1, messages, (), tags, by_name(ticket.name))
            told = number(1) + fingerprint_of(EntryKind.PENDING, messages, ())
            puts.append(Put(answer_key(granted, 1, 1), told, Stamp.LAST))
        conditions = (Condition(_GRANTED, value), Condition(key, joined.value))
        try:
            lsns = yield Commit(conditions, (*puts, *step.puts), step.entries)
        except Refused as refused:
            if refused.found[key] != joined.value:
                raise why_over(ticket, refused.found[key]) from refused
            continue
        return Task(ticket, joined.value, ProducerId(granted, token, 1)), lsns


def pend_task(
    task: Task, seq: int, messages: Sequence[NewMessage], opened: Sequence[str]
) -> Rule[Pended]:
    """Append messages that the batch's marker decides: once, as ``spans.pend`` does.

    Raises ``Fenced`` once the query's row is another than the task found.
    """
    key = query_key(task.ticket.name)
    try:
        return (
            yield from pend_under(
                task.producer,
                seq,
                messages,
                opened,
                conditions=(Condition(key, task.row),),
                name=by_name(task.ticket.name),
            )
        )
    except Refused as refused:
        raise why_over(task.ticket, refused.found[key]) from refused
    except UnknownProducer as error:
        value = (yield Get((key,)))[key]
        if value == task.row:
            raise
        raise why_over(task.ticket, value) from error


def sign(task: Task, count: int) -> Rule[None]:
    """Show that a task is there which has nothing to append for the moment; raises ``Fenced``."""
    key = query_key(task.ticket.name)
    mine = member_key(task.ticket.name, task.ticket.plan, task.producer.id)
    try:
        yield Commit((Condition(key, task.row),), (Put(mine, number(count)),))
    except Refused as refused:
        raise why_over(task.ticket, refused.found[key]) from refused


def why_over(ticket: Ticket, value: bytes | None) -> LogError:
    """Return why a batch takes nothing more of this ticket's tasks."""
    if value is None:
        return late(ticket)
    found = query_of(ticket.name, value)
    try:
        admitted(ticket, found)
    except LogError as error:
        return error
    return Fenced(f"batch {ticket.batch} of {ticket.name!r} is over: this task is late", found.plan)


def _member(key: str, value: bytes) -> Member:
    name, plan, producer = key.removeprefix(TASKS).split("/")
    return Member(name, int(plan), int(producer), int.from_bytes(value, "big"))
