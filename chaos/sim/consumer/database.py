"""Model of the world: a consumer's database of SQL, with the user's tables and the consumer's own.

It is one of SQLite, in memory: what the product writes are its own statements. What lies between
it and the processes is simulated (``sqlite_store``, ``sql_server``).
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from chaos.sim.consumer.names import CONSUMER
from sharedlog._consumer.call_rows import CallRows
from sharedlog._consumer.tables import SQLITE, Table

__all__ = ["Database", "Effect"]

_T = TypeVar("_T")
_Made = TypeVar("_Made", bound=sqlite3.Connection)
_numbers = itertools.count(1)
_TABLES = (
    "CREATE TABLE effect (id INTEGER PRIMARY KEY, shard TEXT, body TEXT, chain TEXT, answers TEXT)",
    "CREATE TABLE tick (shard TEXT PRIMARY KEY, count INTEGER)",
    "CREATE INDEX effect_shard ON effect (shard, id)",
)


class Effect(NamedTuple):
    """What a handler did with a message."""

    body: str
    chain: str
    answers: list[str]


class Database:
    """What is durable of it, and who has its lock."""

    def __init__(self) -> None:
        self.table = Table(CONSUMER, SQLITE)
        self.calls = CallRows(CONSUMER, SQLITE)
        # The file exists as long as a connection has it open.
        self._name = f"/consumer-{next(_numbers)}"
        self._connection = self._seen = self._opened(sqlite3.Connection)
        for each in (self.table.create, self.calls.create, *_TABLES):
            self._connection.execute(each)
        # Who looks at what each commit has made of it.
        self.watchers: list[Callable[[], None]] = []
        self._copy: sqlite3.Connection | None = None

    def carry(self, work: Callable[[Callable[..., Any]], _T], *, tries: bool = False) -> _T:
        """Do something in a transaction, in one moment: all of it, or nothing; ``tries``: that."""
        connection = self._connection
        connection.execute("BEGIN")
        try:
            found = work(connection.execute)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("ROLLBACK" if tries else "COMMIT")
        if not tries:
            self.changed()
        return found

    def connect(self, factory: type[_Made]) -> _Made:
        """Return another connection to it, in autocommit, which waits for no lock."""
        if self._seen is self._connection:
            # A file in memory cannot be read while a connection writes: a copy is looked at.
            self._seen = _in_memory()
            self._look()
        return self._opened(factory)

    def _opened(self, factory: type[_Made]) -> _Made:
        return sqlite3.connect(
            f"file:{self._name}?vfs=memdb",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=0.0,
            factory=factory,
        )

    @contextmanager
    def unless(self, *refused: type[Exception]) -> Iterator[None]:
        """Undo what was committed just before, where what is of one piece with it is refused."""
        before = _in_memory()
        _copy(self._seen, before)
        self._look()
        try:
            yield
        except refused:
            _copy(before, self._connection)
            self._look()
            raise
        finally:
            before.close()

    def changed(self) -> None:
        """Have who looks see what a commit has made of it."""
        self._look()
        for each in self.watchers:
            each()

    def read(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        """Return rows."""
        return self._seen.execute(statement, given).fetchall()

    def chain(self, shard: str) -> str:
        """Return what a shard's effects hash to."""
        found = self.read(
            "SELECT chain FROM effect WHERE shard = ? ORDER BY id DESC LIMIT 1", shard
        )
        return str(found[0][0]) if found else ""

    def effects(self, shard: str) -> list[Effect]:
        """Return a shard's effects, in their order."""
        rows = self.read(
            "SELECT body, chain, answers FROM effect WHERE shard = ? ORDER BY id", shard
        )
        return [Effect(body, chain, json.loads(answers)) for body, chain, answers in rows]

    def ticks(self, shard: str) -> int:
        """Return how often the timer's function was committed."""
        found = self.read("SELECT count FROM tick WHERE shard = ?", shard)
        return int(found[0][0]) if found else 0

    def seq(self, shard: str) -> int:
        """Return through which seq a shard's outputs are committed."""
        found = self.read("SELECT seq FROM sharedlog_consumer WHERE shard = ?", shard)
        return int(found[0][0]) if found else 0

    def position(self, shard: str) -> str:
        """Return through which message a shard's effects are there, as text."""
        found = self.read("SELECT position FROM sharedlog_consumer WHERE shard = ?", shard)
        return str(found[0][0]) if found else ""

    def attempts(self) -> list[tuple[str, str, int]]:
        """Return of each shard through which message it is done, and attempts of the next."""
        return self.read("SELECT shard, position, attempts FROM sharedlog_consumer")

    def clear(self) -> None:
        """Have nothing be in the user's tables."""
        for each in ("DELETE FROM effect", "DELETE FROM tick"):
            self._connection.execute(each)
        self._look()

    def backup(self) -> None:
        """Keep a copy of its present state."""
        self._copy = _in_memory()
        _copy(self._seen, self._copy)

    def restore(self) -> bool:
        """Be as the copy; False: there is none."""
        if self._copy is None:
            return False
        _copy(self._copy, self._connection)
        self._look()
        return True

    def close(self) -> None:
        """Close its connections."""
        for each in (self._connection, self._seen, self._copy):
            if each is not None:
                each.close()

    def _look(self) -> None:
        if self._seen is not self._connection:
            _copy(self._connection, self._seen)


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Have the target be as the source; raises if a connection has its lock, and would wait."""

    def look(status: int, *_: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise AssertionError("a transaction runs: virtual time does not pass here")

    source.backup(target, progress=look)
