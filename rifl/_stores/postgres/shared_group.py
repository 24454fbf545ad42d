"""The group of runs that share a transaction in PostgreSQL, and what became of each (§6, §15)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any, Protocol

import psycopg

from _rifl_ground.counting import noted
from _rifl_ground.threads import in_thread
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.commits import (
    commit_record,
    commit_record_async,
    rollback,
    rollback_async,
)
from rifl._stores.postgres.telling import Teller
from rifl._stores.rows import Move, RowCall
from rifl._stores.shared.requests import MoveInside
from rifl.core._serving.later import Later
from rifl.core._shared.errors import RecordPending, RiflError, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

_SAVED = b"SAVEPOINT rifl_run"
_NEXT = b"RELEASE SAVEPOINT rifl_run; SAVEPOINT rifl_run"
_UNDO = b"ROLLBACK TO SAVEPOINT rifl_run"


class Connections(Protocol):
    """Where a group's connection is from."""

    backend: PostgresBackend
    teller: Teller

    def forget(self, group: Group) -> None:
        """It takes no further run."""

    def give_back(self, connection: Any) -> None:
        """Have a connection be used again."""

    async def give_back_async(self, connection: Any) -> None:
        """The same for a coroutine's."""


class Part(Later):
    """A run's part of a transaction: its record, once a caller has waited for the commit."""

    __slots__ = ("_group", "record")

    def __init__(self, group: Group, record: CompletionRecord) -> None:
        self._group = group
        self.record = record

    def wait(self) -> CompletionRecord:
        """Commit, if not done yet; raises ``RiflError`` if that failed or is unknown."""
        self._group.end()
        return self._result()

    def __await__(self) -> Generator[Any, Any, CompletionRecord]:
        """Await the same."""
        yield from self._group.end_async().__await__()
        return self._result()

    def _result(self) -> CompletionRecord:
        if self._group.error is not None:
            raise self._group.error
        return self.record


class Group:
    """A transaction, of one row. One run at a time; ended by any thread, once."""

    def __init__(self, of: Connections, call: RowCall, move: Move, connection: Any) -> None:
        self._of = of
        self._lock = threading.Lock()
        self._ended = False
        self.call = call
        self.key = move.key
        self.expected = self.value = move.expected
        self.connection = connection
        self.runs = 0
        self.saved = False
        # Why it was not committed, or why that is unknown.
        self.error: RiflError | None = None

    @property
    def is_async(self) -> bool:
        """Whether its connection is a coroutine's."""
        return isinstance(self.connection, psycopg.AsyncConnection)

    def save(self) -> bytes:
        """Return the statement after which a run's part begins; empty: that is all of it."""
        if not self.runs:
            return b""
        saved, self.saved = self.saved, True
        return _NEXT if saved else _SAVED

    def end(self) -> None:
        """Commit, unless that was done; ``error`` says what came of it."""
        if self.is_async:
            raise AssertionError("a coroutine's transaction is committed on its event loop")
        # Who comes second waits for the first.
        with self._lock:
            if self._claimed():
                with contextlib.suppress(RiflError, psycopg.Error):
                    self.commit()

    async def end_async(self) -> None:
        """The same on an event loop."""
        if not self.is_async:
            await in_thread(self.end)
        elif self._claimed():
            with contextlib.suppress(RiflError, psycopg.Error):
                await self.commit_async()

    def _claimed(self) -> bool:
        ended, self._ended = self._ended, True
        return not ended

    def commit(self) -> None:
        """Move the row and commit; raises what ``rifl.transaction`` does."""
        self._ended = True
        self._of.forget(self)
        try:
            with self._of.teller.of(self.connection, self.runs):
                commit_record(self.connection, self._of.backend, self._finish())
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._of.give_back(self.connection)

    async def commit_async(self) -> None:
        """The same for an asynchronous connection."""
        self._ended = True
        self._of.forget(self)
        try:
            with self._of.teller.of(self.connection, self.runs):
                await commit_record_async(self.connection, self._of.backend, self._finish())
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            await self._of.give_back_async(self.connection)

    def undo(self) -> None:
        """Roll back the current run, and nothing before it."""
        if self.runs:
            try:
                self.connection.execute(_UNDO)
            except psycopg.Error as error:
                self._lost(error)
                self._of.give_back(self.connection)
            return
        self._ended = True
        self._of.forget(self)
        with contextlib.suppress(psycopg.Error):
            rollback(self.connection)
        self._of.give_back(self.connection)

    async def undo_async(self) -> None:
        """The same for an asynchronous connection."""
        if self.runs:
            try:
                await self.connection.execute(_UNDO)
            except psycopg.Error as error:
                self._lost(error)
                await self._of.give_back_async(self.connection)
            return
        self._ended = True
        self._of.forget(self)
        with contextlib.suppress(psycopg.Error):
            await rollback_async(self.connection)
        await self._of.give_back_async(self.connection)

    def _finish(self) -> MoveInside:
        return MoveInside(self.call, Move(self.key, self.expected, self.value or b""))

    def _lost(self, error: psycopg.Error) -> None:
        """End the group: it is lost with its connection, or its outcome is unknown."""
        self._ended = True
        self._of.forget(self)
        if self.connection.closed:
            self.error = StoreUnavailable(f"the shared transaction was lost: {error}")
        else:
            self.error = RecordPending(f"the shared transaction was ended within a block: {error}")

    def _failed(self, error: BaseException) -> None:
        noted(error)
        self.error = (
            error
            if isinstance(error, RiflError)
            else RecordPending(
                f"whether the shared transaction was committed is not known: {error}"
            )
        )
