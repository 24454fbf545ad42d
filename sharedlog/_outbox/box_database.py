"""A relay's own way to the database of an outbox."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from _rifl_ground.servers import InvalidAddress
from _rifl_ground.sqlite.address import PREFIX, lone_file_of
from _rifl_ground.sqlite.failures import Replaced, name_of
from _rifl_ground.sqlite.guard import FileGuard
from _rifl_ground.sqlite.opening import Connection, connect
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogUnavailable,
    NoSuchOutbox,
    OutboxWentBack,
    StoreStopped,
)
from sharedlog._core.outbox import Box, Mark, WaitingMessage
from sharedlog._outbox import tables

_POSTGRES = ("postgresql://", "postgres://")
_BUSY_S = 30.0
# How often a SQLite file is looked at while nothing comes: a counter in memory.
_LOOK_S = 0.02


class BoxDatabase(Protocol):
    """What a relay asks. One thread. Raises ``LogUnavailable``, and is used again then."""

    def look(self, name: str, limit: int, at: int = 0) -> Box:
        """Return an outbox as of one moment, with the first that wait; ``NoSuchOutbox``.

        ``at``: the number of a message that may wait: its chain is returned, too.
        """

    def done(self, name: str, mark: Mark) -> None:
        """Note that the log has all through this, and remove it."""

    def adopt(self, name: str, before: str, incarnation: str) -> None:
        """Have an outbox be of another incarnation, if it is of ``before``."""

    def wait(self, closing: threading.Event, timeout_s: float) -> None:
        """Wait until something may have been published, or the timeout passes."""

    def close(self) -> None:
        """Close it; idempotent."""


def open_database(url: str) -> BoxDatabase:
    """Return the way to a database: ``sqlite:///FILE`` or ``postgresql://HOST/DATABASE``."""
    if url.startswith(PREFIX):
        try:
            return _Sqlite(lone_file_of(url).absolute())
        except ValueError as error:
            raise InvalidRequest(f"an outbox's database: {error}") from None
    if url.startswith(_POSTGRES):
        try:
            return _Postgres(url)
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
    raise InvalidRequest(
        "an outbox is in sqlite:///FILE (four slashes: from the root), or postgresql://HOST/DATABASE"
    )


class _Tables:
    """The same statements for both; a subclass says how they are sent, and what errors mean."""

    dialect: tables.OutboxDialect

    def __init__(self) -> None:
        self._connection: Any = None

    def look(self, name: str, limit: int, at: int = 0) -> Box:
        """Return an outbox as of one moment, with its first messages; raises ``NoSuchOutbox``."""
        of = self.dialect.of
        with self._transaction(name) as execute:
            row = execute(of(tables.BOX), (name,)).fetchone()
            if row is None:
                raise _no_such(name)
            made, incarnation, *marks = row
            head, done = Mark(marks[0], bytes(marks[1])), Mark(marks[2], bytes(marks[3]))
            found = execute(of(tables.WAITING), (name, done.seq, limit)).fetchall()
            chain = execute(of(tables.CHAIN_AT), (name, at)).fetchone() if at else None
        waiting = [
            WaitingMessage(seq, tag, bytes(body), bytes(chain)) for seq, tag, body, chain in found
        ]
        there = None if chain is None else Mark(at, bytes(chain[0]))
        return Box(name, made, incarnation, head, done, waiting, there)

    def done(self, name: str, mark: Mark) -> None:
        """Note that the log has all messages through this mark, and remove them."""
        of = self.dialect.of
        with self._transaction(name, writes=True) as execute:
            execute(of(tables.DONE), (mark.seq, mark.chain, name, mark.seq))
            execute(of(tables.REMOVE), (name, mark.seq))

    def adopt(self, name: str, before: str, incarnation: str) -> None:
        """Bind an outbox to another incarnation, if it is of ``before``."""
        with self._transaction(name, writes=True) as execute:
            execute(self.dialect.of(tables.ADOPT), (incarnation, name, before))

    def close(self) -> None:
        """Close the database; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def _transaction(self, name: str, *, writes: bool = False) -> Iterator[Callable[..., Any]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._begun(self._connection, writes=writes) as execute:
                yield execute
        except LogError:
            raise
        except Exception as error:
            told = self._told(error, name)
            self.close()
            raise told from error

    def _connect(self) -> Any:
        raise NotImplementedError

    def _begun(
        self, connection: Any, *, writes: bool
    ) -> contextlib.AbstractContextManager[Callable[..., Any]]:
        raise NotImplementedError

    def _told(self, error: Exception, name: str) -> LogError:
        """Return what an error means."""
        raise NotImplementedError


class _Sqlite(_Tables):
    dialect = tables.SQLITE

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._guard = FileGuard(path)
        self._version = -1

    def wait(self, closing: threading.Event, timeout_s: float) -> None:
        """Wait for any write to the file, or for the timeout."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not closing.wait(_LOOK_S):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                told = self._told(error)
                self.close()
                raise told from error
            if version != self._version:
                self._version = version
                return

    def close(self) -> None:
        """Close the database; idempotent."""
        self._guard.closed()
        super().close()

    def _connect(self) -> Any:
        self._guard.check_main()
        connection = connect(self._path, Connection, busy_s=_BUSY_S)
        try:
            self._guard.opened(connection)
        except BaseException:
            connection.close()
            raise
        self._version = -1
        return connection

    @contextlib.contextmanager
    def _begun(self, connection: Any, *, writes: bool) -> Iterator[Callable[..., Any]]:
        guard, raised = self._guard, None
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            guard.begun(connection)
            yield connection.execute
            if writes:
                raised = guard.mark.write(connection)
            else:
                # A loss of power must not take back what the log gets.
                guard.sync_folder()
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        guard.committed(raised)

    def _told(self, error: Exception, name: str = "") -> LogError:
        stopped = self._guard.met(error)
        if isinstance(stopped, Replaced):
            return OutboxWentBack(f"the outbox's database: {stopped}")
        if stopped is not None:
            return StoreStopped(f"the outbox's database: {stopped}")
        if name_of(error) == "SQLITE_ERROR":
            return _no_such(name)
        return _unavailable(error)


class _Postgres(_Tables):
    dialect = tables.POSTGRES

    def __init__(self, url: str) -> None:
        from _rifl_ground.postgres.address import PostgresAddress

        super().__init__()
        try:
            # Its tables are where the search path has them.
            self._address = PostgresAddress.parse(url, schema="public")
        except InvalidAddress as error:
            raise InvalidRequest(str(error)) from None

    def wait(self, closing: threading.Event, timeout_s: float) -> None:
        """Wait for a notification of the server, or for the timeout."""
        try:
            if self._connection is None:
                self._connection = self._connect()
                return
            for _ in self._connection.notifies(timeout=timeout_s, stop_after=1):
                return
        except Exception as error:
            self.close()
            raise _unavailable(error) from error

    def _connect(self) -> Any:
        from _rifl_ground.postgres.connections import connect

        connection = connect(self._address)
        connection.execute(f"LISTEN {tables.CHANNEL}".encode())
        return connection

    @contextlib.contextmanager
    def _begun(self, connection: Any, *, writes: bool) -> Iterator[Callable[..., Any]]:
        from psycopg.rows import tuple_row

        with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
            # As of one moment; nothing here is in a rival's way.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield cursor.execute

    def _told(self, error: Exception, name: str) -> LogError:
        if getattr(error, "sqlstate", None) == "42P01":
            return _no_such(name)
        return _unavailable(error)


def _no_such(name: str) -> NoSuchOutbox:
    return NoSuchOutbox(f"the database has no outbox {name!r}: create_outbox makes it")


def _unavailable(error: Exception) -> LogUnavailable:
    lines = str(error).strip().splitlines()
    found = LogUnavailable(
        f"the outbox's database: {type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    )
    found.appended = False
    return found
