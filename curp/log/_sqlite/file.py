"""A log file: its connections, its transactions, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from curp.log._errors import CorruptLog, EngineFull, EngineStopped, EngineUnavailable, LogError
from curp.log._sqlite.commit_note import CommitNote
from rifl._log import get_logger

_log = get_logger("curp.log")
_SMALLEST_PAGE = 512
_RETRY_S = 0.01
# Those beside it are there as long as anybody has it open.
_SUFFIXES = ("", "-wal", "-shm")
_COMMITS = "SELECT commits FROM curp_group WHERE group_id=?"
_RAISE = "UPDATE curp_group SET commits=commits+1 WHERE group_id=?"


class LogFile:
    """One process's way to the file, safe in any thread.

    A connection for writing, one for reading, one to notice that others wrote; each
    under a lock of its own. WAL with ``synchronous=FULL``: a transaction is visible
    to anybody only when it is on the disk.

    Invariant 1: once a sync has failed, or the file at the path or one beside it is no
    longer this one, nothing is written or read here any more, for nobody knows what is on the
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
        self._note = CommitNote(path)
        # Of the log whose commits are counted, once it is known.
        self._group_id: int | None = None
        self._files: tuple[tuple[int, int], ...] | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give an immediate transaction, committed at the end, undone by any error."""
        with self._locks[0], self._errors():
            self._check_files()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                commits = self._count()
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            # What was committed to files that are no longer there is nowhere.
            self._check_files()
            if self._group_id is not None:
                self._note.raise_to(self._group_id, commits)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a transaction that sees the file as of one moment."""
        with self._locks[1], self._errors():
            self._check_files()
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
            self._check_files()
            yield self._watcher

    def guard(self, group_id: int, *, new: bool) -> None:
        """Count this log's commits from now on, and remember which files these are.

        Raises ``CorruptLog`` if the file lacks commits that were acknowledged: it is an
        older copy, or its ``-wal`` is missing.
        """
        noted = 0 if new else self._note.read(group_id)
        with self.reading() as connection:
            held = connection.execute(_COMMITS, (group_id,)).fetchone()[0]
            self._files = self._find_files()
        if held < noted:
            raise CorruptLog(
                f"{self.path} lacks {noted - held} commits that were acknowledged: it is an older "
                f"copy, or its -wal file is missing. Bring the right files back. If they are lost, "
                "and the group is to go on with what is here: curp log accept-loss URL"
            )
        self._group_id = group_id
        self._note.raise_to(group_id, held)

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.closing.set()
        connections = (self._writer, self._reader, self._watcher)
        for lock, connection in zip(self._locks, connections, strict=True):
            with lock:
                connection.close()
        with self._locks[0]:
            self._note.close()

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

    def _count(self) -> int:
        if self._group_id is None:
            return 0
        # In two: RETURNING is younger than the oldest SQLite that Python comes with.
        self._writer.execute(_RAISE, (self._group_id,))
        return int(self._writer.execute(_COMMITS, (self._group_id,)).fetchone()[0])

    def _check_files(self) -> None:
        """Stop unless the names are of the files that are open here (invariant 1)."""
        if self._files is None:
            return
        try:
            found = self._find_files()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._stop(f"{error.filename} is gone") from error
        except OSError:
            # Not to be seen just now is no sign of anything.
            return
        if found != self._files:
            raise self._stop(f"{self.path}, or a file beside it, is another file now")

    def _find_files(self) -> tuple[tuple[int, int], ...]:
        stats = [os.stat(f"{self.path}{suffix}") for suffix in _SUFFIXES]
        return tuple((found.st_dev, found.st_ino) for found in stats)


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""
