"""Calls of one client over a SQLite store, for tests of the transaction that they share."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.record import CompletionRecord
from tests.stores.conformance import FIRST, Opened, call, wait

__all__ = ["ATOMIC", "INSERT", "Calls", "Place", "failing"]

ATOMIC = MethodPolicy(kind=Kind.ATOMIC)
INSERT = "INSERT INTO effect VALUES (?)"


class Place:
    """A store in a file with a table of effects, and a reader of it that is nobody's."""

    durable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE effect (what UNIQUE)")

    def effects(self) -> list[Any]:
        """What is committed, in order."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute("SELECT what FROM effect")]


class Calls:
    """A store, and calls of one client that are begun."""

    def __init__(self, place: Place) -> None:
        self.opened = Opened(place, window=512)
        self.store: Any = self.opened.store
        self.client = self.opened.client()
        self._seq = 0

    @property
    def shared(self) -> Any:
        """What the calls share."""
        return self.store._main.shared

    def begin(self, policy: MethodPolicy = ATOMIC) -> Attempt:
        """A call whose handler is to run now."""
        self._seq += 1
        return self.opened.begin(call(self.client, self._seq), policy)

    def enter(self, attempt: Attempt, remaining_s: float | None = None) -> Any:
        """Its turn, for ``with``."""
        return self.store.shared_blocks.block(attempt, remaining_s)

    def enter_async(self, attempt: Attempt, remaining_s: float | None = None) -> Any:
        """Its turn, for ``async with``."""
        return self.store.shared_blocks.block_async(attempt, remaining_s)

    def act(self, attempt: Attempt, what: Any = None) -> None:
        """One effect and the record, in a turn."""
        with self.enter(attempt) as connection:
            connection.execute(INSERT, (what or attempt.call.seq,))
            self.store.transactions.record(attempt, FIRST, connection)

    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self.shared._queue._waiting)

    def end(self, attempt: Attempt) -> CompletionRecord | None:
        """Settle a call as the rules do; its record, if it left one."""
        standing = self.store.committed(attempt)
        if isinstance(standing, Later):
            standing = wait(standing)
        if standing is None:
            wait(self.store.abandon(attempt))
        else:
            self.store.adopt(attempt, standing)
        return standing  # type: ignore[no-any-return]


class _Failing(sqlite3.Connection):
    """A connection whose next commit fails."""

    error: sqlite3.Error | None = None

    def commit(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        super().commit()


def failing(calls: Calls, name: str) -> None:
    """Have the next shared commit fail with SQLite's error of that name."""
    connection = sqlite3.connect(
        calls.store._main.path, isolation_level=None, check_same_thread=False, factory=_Failing
    )
    error = sqlite3.OperationalError(name)
    error.sqlite_errorname = name
    connection.error = error
    calls.shared._connect = lambda: connection
