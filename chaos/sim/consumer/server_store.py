"""Model of the world: a server of SQL as PostgreSQL's, and a process's way to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from _rifl_ground.loans import Loan
from chaos.sim.consumer.database import Database
from chaos.sim.consumer.engine import SimulatedEngine
from chaos.sim.consumer.stage import Acting, Stage
from chaos.sim.consumer.wire import Lost, Wire
from chaos.sim.faults import Fault, Point
from sharedlog._consumer.joined_append import Held, JoinedAppend
from sharedlog._core.commit import Refused
from sharedlog._core.consumer.asked import Failed, Unit
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.errors import StoreAway
from sharedlog._core.position import Position
from sharedlog._core.steps import Rule
from sharedlog._engines.driving import do

__all__ = ["Connection", "ServerStore"]

_T = TypeVar("_T")


class Connection:
    """What handlers write with: what they wrote is there once the consumer commits it."""

    def __init__(self, store: ServerStore) -> None:
        self._store = store
        self.begin()

    def begin(self) -> None:
        """Begin a transaction: what was written is not there."""
        self.statements: list[tuple[str, tuple[Any, ...]]] = []
        self._chains: dict[str, str] = {}
        self._ticks: dict[str, int] = {}

    def chain(self, shard: str) -> str:
        """Return what a shard's effects hash to."""
        if shard not in self._chains:
            found = self._store.reads(lambda database: database.chain(shard))
            self._chains[shard] = found
        return self._chains[shard]

    def effect(self, shard: str, body: str, chain: str, answers: list[str]) -> None:
        """Write what a message does."""
        self._store.writes += 1
        self._chains[shard] = chain
        self.statements.append(
            (
                "INSERT INTO effect (shard, body, chain, answers) VALUES (?, ?, ?, ?)",
                (shard, body, chain, json.dumps(answers)),
            )
        )

    def tick(self, shard: str) -> int:
        """Count a timer's time, and return the count."""
        self._store.writes += 1
        if shard not in self._ticks:
            self._ticks[shard] = self._store.reads(lambda database: database.ticks(shard))
        self._ticks[shard] += 1
        count = self._ticks[shard]
        self.statements.append(("INSERT OR REPLACE INTO tick VALUES (?, ?)", (shard, count)))
        return count


class _Store:
    """See ``sharedlog._consumer.store.Store``: what both have."""

    def __init__(self, cast: Stage, actor: Acting, database: Database, wire: Wire) -> None:
        self._cast = cast
        self._wire = wire
        self._actor = actor
        self._process = actor.process
        self._database = database
        # One of the process's, as a driver's is.
        self._connection: Connection | None = None
        self._transaction: Connection | None = None
        # Of statements that handlers wrote.
        self.writes = 0
        # Where the log is in the database: what is appended by the next commit, and what keys of
        # it hold since the last one.
        self._append: JoinedAppend | None = None
        self._known: dict[str, Held] = {}

    def note(self, tag: str, number: int, attempts: int) -> None:
        """See ``Store``."""
        table = self._database.table
        self.carry(Point.NOTE, lambda execute: table.note(execute, tag, number, attempts))

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> None:
        """See ``Store``."""

        def work(execute: Any) -> None:
            self._database.table.rewind(execute, tag, number, epoch, position)
            self._database.calls.forget(execute, tag)

        self.carry(Point.STORE_TAKEN, work)

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """See ``Store``."""
        calls = self._database.calls
        return self.carry(Point.STORE_TAKEN, lambda execute: calls.read(execute, tag))

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """See ``Store``."""

        def work(execute: Any) -> None:
            if not self._database.calls.intend(execute, tag, number, call):
                raise self._database.table.fenced(execute, tag, number)

        self.carry(Point.INTENDED, work, apart=True)

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """See ``Store``."""

        def work(execute: Any) -> None:
            if not self._database.calls.answered(execute, tag, number, call):
                raise self._database.table.fenced(execute, tag, number)

        self.carry(Point.ANSWER_KEPT, work, apart=True)

    def append(self, tag: str, append: Rule[Any]) -> None:
        """Have an append be in the transaction that runs, as the product's own stores do."""
        engine: Any = SimulatedEngine(self._cast, self._actor)
        held = self._known.pop(tag, None)
        self._append = JoinedAppend(lambda step: do(engine, step), append, held)

    def commit(self, tag: str, checkpoint: Checkpoint, _: Sequence[Unit] = ()) -> None:
        """See ``Store``."""
        append, self._append = self._append, None
        self._known.pop(tag, None)
        transaction, self._transaction = self._transaction, None
        statements = [] if transaction is None else transaction.statements
        database = self._database

        def work(execute: Any) -> Held | None:
            for statement, given in statements:
                execute(statement, given)
            database.table.move(execute, tag, checkpoint)
            if checkpoint.position is not None:
                database.calls.passed(execute, tag, checkpoint.position)
            # The last: what is behind it does not fail.
            return None if append is None else self._appended(append)

        try:
            held = self.carry(Point.STORE_COMMIT, work)
        except Refused as refused:
            if append is None:
                raise
            raise append.refused(refused) from refused
        if held is not None:
            self._known[tag] = held

    def _appended(self, append: JoinedAppend) -> Held | None:
        """Append, in the moment in which the store's transaction is committed."""
        if append.commit is None:
            return None
        server = self._cast.server
        return append.left(server.at_once(self._process, append.commit, Point.NAMED))

    def carry(self, point: Point, work: Callable[[Any], _T], *, apart: bool = False) -> _T:
        """Do something in a transaction; raises ``StoreAway``."""
        raise NotImplementedError

    def _begun(self, new: Connection) -> Connection:
        connection = self._connection = self._connection or new
        connection.begin()
        self._transaction = connection
        return connection

    def lend(self, loan: Loan) -> Connection | None:
        """See ``Store``."""
        del loan
        return self._connection

    def take_back(self) -> None:
        """Handlers leave nothing running."""

    def sqlalchemy(self) -> Any:
        """There is none."""
        raise AssertionError("no rule asks for it")

    def savepoint(self) -> NoReturn:
        """There is none."""
        raise AssertionError("no rule asks for it")

    def intact(self) -> None:
        """Handlers leave transactions alone."""

    def judge(self, error: BaseException) -> bool:
        """See ``Store``: what it raises says so itself."""
        return True

    def close(self) -> None:
        """See ``Store``."""
        self.rollback()

    def rollback(self) -> None:
        """See ``Store``."""
        self._transaction = None
        self._append = None

    def full(self, point: Point) -> None:
        """Raise where there is no room."""
        if self._cast.full_until > self._cast.loop.now:
            self._cast.coverage.hit(Fault.FULL_DISK, point)
            raise Failed("disk full", counts=False)


class ServerStore(_Store):
    """As PostgreSQL's: requests and answers travel, and a session may be ended by who takes over.

    What waits for locks there is done in one moment here: a commit is there, or it is not.
    """

    def __init__(self, cast: Stage, actor: Acting, database: Database, wire: Wire) -> None:
        super().__init__(cast, actor, database, wire)
        self._session = self._lost = ""

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> Checkpoint:
        """See ``Store``, and ``PostgresStore``, in whose order this is done."""
        table = self._database.table
        self._known.pop(tag, None)
        before = self.carry(Point.STORE_TAKEN, lambda execute: table.session(execute, tag))
        for each in sorted({self._lost, before if gone else ""} - {""}):
            self._end(each)
        self._lost = ""
        session = self._opened()
        return self.carry(
            Point.STORE_TAKEN,
            lambda execute: table.take(execute, tag, number, gone=gone, anew=anew, session=session),
        )

    def _end(self, session: str) -> None:
        ended = self._database.ended
        self.carry(Point.STORE_TAKEN, lambda _: ended.add(session))

    def written(self) -> None:
        """See ``Store``."""

    def suspend(self) -> None:
        """See ``Store``."""

    def resume(self, *, read: bool) -> None:
        """See ``Store``."""

    def begin(self) -> Connection:
        """See ``Store``."""
        self._opened()
        return self._begun(Connection(self))

    def reads(self, read: Callable[[Database], _T]) -> _T:
        """Read, for a handler."""
        return self._ask(Point.HANDLER, lambda: read(self._database), self._opened())

    def carry(self, point: Point, work: Callable[[Any], _T], *, apart: bool = False) -> _T:
        """See ``_Store``; ``apart``: in a session of its own, which is never ended."""

        def do() -> _T:
            self.full(point)
            return self._database.carry(work)

        return self._ask(point, do, "" if apart else self._opened())

    def _ask(self, point: Point, do: Callable[[], _T], session: str) -> _T:
        def unless_ended() -> _T:
            if session in self._database.ended:
                raise StoreAway("the session was ended")
            return do()

        try:
            found: _T = self._wire.ask(self._actor, point, unless_ended)
        except Lost as error:
            self._gone()
            raise StoreAway("the store does not answer") from error
        except StoreAway:
            self._gone()
            raise
        return found

    def _gone(self) -> None:
        self._lost, self._session = self._session or self._lost, ""
        self._transaction = None

    def _opened(self) -> str:
        if not self._session:
            self._cast.sessions += 1
            self._session = f"s{self._cast.sessions}"
        return self._session
