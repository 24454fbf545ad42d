"""The state of a query: which plan of which batch may append, and what was committed last.

``query/NAME`` is one row, and every task's append is conditional on it as the task found it. So one
step ends all appends in flight of tasks of older plans, of a batch that is being committed, or of
an abandoned one, however many they are (DESIGN-LOG §16, §18).

A *plan* is a number that the log gives once, to a program that plans a batch. Of two plans of a
query the higher one is in; a *run* that was in, and that another one followed, is not in again.

Of a query that an operator had forgotten the row stays, and says which plan was the last and which
runs were in: the name begins anew with newer ones alone. A write that has a name of its own, which
no other write will have, keeps nothing (``joining.begin_write``, ``closing.remove_write``); if its
driver crashes before it removes the row a sweeper does (``sweeping.left_writes``).
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from sharedlog._core.commit import LSN_BYTES
from sharedlog._core.errors import (
    CheckpointWentBack,
    CorruptLog,
    Fenced,
    InvalidRequest,
    NewerFormat,
    PredecessorMismatch,
)
from sharedlog._core.fences import raise_fence
from sharedlog._core.steps import Get, Rule, Scan

QUERIES = "query/"
# The number of the plan that was drawn last; no user's fence has such a name.
PLANS = "*plans"
# The identity of a write that has a name of its own: no query of Spark's has such an id.
WRITE = "write"
_VERSION = 1
# Runs that are remembered as deposed: one more with each restart.
_DEPOSED = 100


class PlanState(enum.Enum):
    """What the tasks of a query's plan may do."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    ABANDONED = "abandoned"


class Query(NamedTuple):
    """A query as the log keeps it.

    ``identity``: whose name it is, Spark's id of the query, or a fixed word for a job. ``run``,
    ``plan``, ``batch``: who was in last, and for what. ``closed``: the highest batch that was
    committed, -1 for none, by ``closed_by``, a plan; ``closed_run``: the run that committed it, or
    that wrote it twice since; ``lsn``: of its marker, 0 where it had no rows; ``rows``,
    ``content``: what it committed. ``deposed``: runs that others followed.
    ``checkpoint``: where that says its batch is, "" where it did not say. ``stream``: where the
    rows of its last batch are. Since the row was made:
    ``batches``, ``all_rows`` and ``entries`` that it committed; ``undone``: attempts of tasks whose
    entries no marker named, about, as a crash on the way may leave some out.
    """

    name: str
    state: PlanState = PlanState.CLOSED
    identity: str = ""
    run: str = ""
    plan: int = 0
    batch: int = -1
    closed: int = -1
    closed_by: int = 0
    rows: int = 0
    content: int = 0
    deposed: tuple[str, ...] = ()
    checkpoint: str = ""
    batches: int = 0
    all_rows: int = 0
    entries: int = 0
    undone: int = 0
    closed_run: str = ""
    stream: str = ""
    lsn: int = 0

    @property
    def forgotten(self) -> bool:
        """Whether an operator had it forgotten, and no run has begun it anew."""
        return not self.identity

    @property
    def made(self) -> bool:
        """Whether it is a write that has a name of its own: once its row is gone, so is all."""
        return self.identity == WRITE

    def forget(self, plan: int) -> Query:
        """Return what is kept once it is forgotten; ``plan``: above all that were drawn."""
        return Query(self.name, plan=plan, deposed=_followed(self))

    def value(self, *, stamped: bool = False) -> bytes:
        """Return what the row holds; ``stamped``: the engine puts the LSN behind it."""
        said = self._asdict() | {"version": _VERSION, "state": self.state.value}
        del said["name"], said["lsn"]
        data = json.dumps(said, separators=(",", ":")).encode()
        return data if stamped else data + self.lsn.to_bytes(LSN_BYTES, "big")


class Ticket(NamedTuple):
    """Who acts for a batch of a query.

    ``gaps``: it may have no batch between this one and the last. ``adopt``: the name's next batch
    is this one, also if another query had the name. ``checkpoint``: where its query keeps which
    batch is next, "" if unknown: another one's batch is not its own, whatever their numbers.
    """

    name: str
    identity: str
    run: str
    plan: int
    batch: int
    gaps: bool = False
    adopt: bool = False
    checkpoint: str = ""

    @property
    def made(self) -> bool:
        """Whether its row was made by its planner: what comes when that is gone is late."""
        return self.identity == WRITE


class Joined(NamedTuple):
    """A query that a ticket is in: its row's value; ``committed``: its batch was before."""

    query: Query
    value: bytes
    committed: bool


def query_key(name: str) -> str:
    """Return the key of a query's row."""
    return QUERIES + name


def by_name(name: str) -> str:
    """Return the name that entries of a query have; no named producer has such a one."""
    return f"*query/{name}"


def draw_plan() -> Rule[int]:
    """Return a number that no plan of this log has had, above all of them."""
    return (yield from raise_fence(PLANS))


def find_query(name: str) -> Rule[Query | None]:
    """Return a query, or None if there is none, or it was forgotten."""
    value = (yield Get((query_key(name),)))[query_key(name)]
    found = None if value is None else query_of(name, value)
    return None if found is None or found.forgotten else found


def all_queries() -> Rule[list[Query]]:
    """Return the queries of the log, by name, but those that were forgotten."""
    found: Mapping[str, bytes] = yield Scan(QUERIES)
    queries = [query_of(key.removeprefix(QUERIES), found[key]) for key in sorted(found)]
    return [each for each in queries if not each.forgotten]


def admitted(ticket: Ticket, found: Query) -> Query:
    """Return the query once this ticket is in; raises why it is not."""
    forgotten = found.forgotten
    if found.identity and found.identity != ticket.identity:
        if not ticket.adopt:
            raise CheckpointWentBack(
                f"{ticket.name!r} has committed batches up to {found.closed} for another query "
                f"({found.identity}): its checkpoint was deleted, or two have one name"
            )
        found = found._replace(identity=ticket.identity, closed=ticket.batch - 1, lsn=0)
    elif not found.identity:
        found = found._replace(identity=ticket.identity)
        if ticket.adopt:
            found = found._replace(closed=ticket.batch - 1)
    run = run_of(ticket.run)
    if ticket.plan < found.plan or (run != found.run and run in found.deposed):
        if forgotten:
            raise late(ticket)
        raise Fenced(
            f"another run of {ticket.name!r} took over (plan {found.plan}; this is "
            f"{ticket.plan}): of two on copies of one checkpoint the newer goes on",
            found.plan,
        )
    if ticket.batch < found.closed:
        raise CheckpointWentBack(
            f"{ticket.name!r} has committed batch {found.closed}, and this is batch "
            f"{ticket.batch}: the checkpoint is an older copy, or another query has the name"
        )
    if ticket.batch == found.closed and _elsewhere(ticket, found):
        raise CheckpointWentBack(
            f"{ticket.name!r} has committed batch {found.closed} from the checkpoint "
            f"{found.checkpoint}, and this is {ticket.checkpoint}: of two copies the one that "
            "committed goes on; adopt it if it was moved here"
        )
    if ticket.batch > found.closed + 1 and not ticket.gaps:
        raise PredecessorMismatch(
            f"batch {ticket.batch} of {ticket.name!r} does not follow {found.closed}, the last "
            "that this log has: the log is another one, or was restored",
            found.closed,
        )
    if ticket.plan == found.plan:
        if ticket.batch != found.closed:
            _check_same(ticket, found)
        return found
    deposed = found.deposed if found.run == run else _followed(found)
    state = PlanState.CLOSED if ticket.batch == found.closed else PlanState.OPEN
    if state is PlanState.CLOSED and found.run == run:
        found = found._replace(closed_run=run)
    return found._replace(
        state=state, run=run, plan=ticket.plan, batch=ticket.batch, deposed=deposed
    )


def late(ticket: Ticket) -> Fenced:
    """Return the error of a task that comes after its query was forgotten."""
    return Fenced(f"the query {ticket.name!r} was forgotten: this is late", ticket.plan)


def run_of(run: str) -> str:
    """Return how a run is remembered."""
    return hashlib.blake2b(run.encode(), digest_size=6).hexdigest() if run else ""


def query_of(name: str, value: bytes) -> Query:
    """Read a query's row; raises ``CorruptLog``, ``NewerFormat``."""
    try:
        said: dict[str, Any] = json.loads(value[:-LSN_BYTES])
        version = said.pop("version")
        if version > _VERSION:
            raise NewerFormat(f"query {name!r} is of version {version}: a newer release's")
        said["state"] = PlanState(said["state"])
        said["deposed"] = tuple(said["deposed"])
        return Query(name, **said, lsn=int.from_bytes(value[-LSN_BYTES:], "big"))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"what is kept of query {name!r} is not what was written") from error


def _followed(found: Query) -> tuple[str, ...]:
    """Return the runs that are not in again, once another run is in, or none."""
    return (*found.deposed, found.run)[-_DEPOSED:] if found.run else found.deposed


def _elsewhere(ticket: Ticket, found: Query) -> bool:
    """Whether a batch was committed from another checkpoint: it may have had other rows."""
    both = ticket.checkpoint and found.checkpoint
    return bool(both) and ticket.checkpoint != found.checkpoint and not ticket.adopt


def _check_same(ticket: Ticket, found: Query) -> None:
    if ticket.batch != found.batch or run_of(ticket.run) != found.run:
        raise InvalidRequest(f"plan {ticket.plan} of {ticket.name!r} is of another batch or run")
    if found.state is not PlanState.OPEN:
        _refuse(ticket, found)


def _refuse(ticket: Ticket, found: Query) -> NoReturn:
    why = {
        PlanState.CLOSING: "is being committed: this task is late",
        PlanState.ABANDONED: "was silent for so long that it was taken for abandoned",
    }
    raise Fenced(
        f"batch {ticket.batch} of {ticket.name!r} {why.get(found.state, 'is over')}", found.plan
    )
