"""A log file: its connections, its transactions, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from curp.log.errors import CorruptLog, EngineFull, EngineStopped, EngineUnavailable, LogError
from lease_server.log import get_logger

__all__ = ["LogFile"]

_log = get_logger("curp.log")
_SMALLEST_PAGE = 512
_RETRY_S = 0.01


class LogFile:
    """One process's way to the file, safe in any thread.

    A connection for writing, one for reading, one to notice that others wrote; each
    under a lock of its own. WAL with ``synchronous=FULL``: a transaction is visible
    to anybody only when it is on the disk.

    Invariant 1: once a sync has failed, or the file at the path is no longer this
    one, nothing is written or read here any more, for nobody knows what is on the
    disk: ``EngineStopped``. (A sync that fails while SQLite moves pages from the WAL
    into the file loses nothing: the pages stay in the WAL, and are written again.)
    """

    def __init__(self, path: Path, timeout_s: float, *, create: bool) -> None:
        self.path = path
        self._create = create
        self._timeout_s = timeout_s
        self._stopped: str | None = None
        self.closing = threading.Event()
        self._locks = (threading.Lock(), threading.Lock(), threading.Lock())
        self._writer, self._reader, self._watcher = self._connect()
        self._inode = self._find_inode()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give an immediate transaction, committed at the end, undone by any error."""
        with self._locks[0], self._errors():
            if self._find_inode() != self._inode:
                raise self._stop(f"{self.path} is another file now")
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a transaction that sees the file as of one moment."""
        with self._locks[1], self._errors():
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._reader.execute("ROLLBACK")

    @contextlib.contextmanager
    def watching(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that never writes, outside of a transaction."""
        with self._locks[2], self._errors():
            yield self._watcher

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.closing.set()
        connections = (self._writer, self._reader, self._watcher)
        for lock, connection in zip(self._locks, connections, strict=True):
            with lock:
                connection.close()

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
        made: list[sqlite3.Connection] = []
        try:
            if 0 < (self.path.stat().st_size if self.path.exists() else 0) < _SMALLEST_PAGE:
                # SQLite would take it for a new one.
                raise CorruptLog(f"{self.path} is damaged: it is cut off in its first page")
            for _ in self._locks:
                made.append(
                    sqlite3.connect(
                        # A file that went meanwhile is not made anew by looking at it.
                        f"{self.path.as_uri()}?mode={'rwc' if self._create else 'rw'}",
                        uri=True,
                        timeout=self._timeout_s,
                        isolation_level=None,
                        check_same_thread=False,
                    )
                )
            self._begin_wal(made[0])
            made[0].execute("PRAGMA synchronous=FULL")
            # A log that was long once need not keep its room for ever.
            made[0].execute(f"PRAGMA journal_size_limit={64 << 20}")
            return made[0], made[1], made[2]
        except BaseException as error:
            for connection in made:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._meaning(error) from error
            raise

    def _begin_wal(self, connection: sqlite3.Connection) -> None:
        # Two processes that make the same file at once: SQLite refuses one of them
        # without waiting.
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if _name(error).startswith("SQLITE_BUSY") and time.monotonic() < end:
                    time.sleep(_RETRY_S)
                    continue
                raise
            if mode != "wal":
                raise EngineUnavailable(f"{self.path}: SQLite cannot keep a WAL here, but {mode}")
            return

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self.closing.is_set():
            raise EngineStopped("the log engine is closed")
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        try:
            yield
        except sqlite3.Error as error:
            raise self._meaning(error) from error

    def _meaning(self, error: sqlite3.Error) -> LogError:
        name = _name(error)
        if "FSYNC" in name:
            return self._stop(f"{self.path} could not be synced: {error}")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")):
            # SQLITE_ERROR: no such table or column, where there was one.
            return CorruptLog(f"{self.path} is damaged, or no log: {error}")
        if name == "SQLITE_FULL":
            return EngineFull(f"{self.path}: there is no room on its disk: {error}")
        return EngineUnavailable(f"{self.path} cannot be used now: {error}")

    def _roll_back(self) -> None:
        if not self._writer.in_transaction:
            return
        try:
            self._writer.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._stop(f"{self.path}: a transaction could not be undone: {error}")

    def _stop(self, why: str) -> EngineStopped:
        if self._stopped is None:
            self._stopped = why
            _log.critical("log_engine_stopped", why=why)
        return EngineStopped(why)

    def _find_inode(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""
