"""Model of the world: a disk under the product's SQLite store, which outlives processes.

What is simulated is when a commit ends, whether it fails, and what of one that was
in flight is there after a crash. The rest, statements, constraints and recovery, is
SQLite's and the store's own.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from chaos.sim.faults import Coverage, Fault, Point
from chaos.sim.loop import Loop, Process, Timer
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.medium import Medium, OwnedFile

__all__ = ["Disk", "SimulatedJournal", "SimulatedMedium", "was_written"]

_numbers = itertools.count(1)


class Disk:
    """One file; ``wipe`` makes another of it, empty."""

    def __init__(self, loop: Loop, random: Random, coverage: Coverage) -> None:
        self.loop = loop
        self.random = random.random
        self.coverage = coverage
        self.slow_until = 0.0
        self.slow_s = 0.0
        self.full_until = 0.0
        self.fsync_fails = False
        self.path = Path()
        self._keeper: sqlite3.Connection | None = None
        self.wipe()

    def wipe(self) -> None:
        """Lose everything."""
        if self._keeper is not None:
            self._keeper.close()
        self.path = Path(f"/rifl-{next(_numbers)}")
        self._keeper = self.connect()

    def holds_a_store(self) -> bool:
        """Whether one was made since all was lost: no server goes on with a copy of nothing."""
        keeper: sqlite3.Connection = self._keeper  # type: ignore[assignment]  # there is always one
        made = "SELECT 1 FROM sqlite_master WHERE name='rifl_meta'"
        return keeper.execute(made).fetchone() is not None

    def backup(self) -> sqlite3.Connection:
        """Copy what is there now."""
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        self._keeper.backup(copy)  # type: ignore[union-attr]  # there is always one
        return copy

    def restore(self, copy: sqlite3.Connection) -> None:
        """Have what was copied in the place of what is there."""
        self.wipe()
        copy.backup(self._keeper)  # type: ignore[arg-type]  # as above
        copy.close()

    def close(self) -> None:
        """Let the memory go."""
        if self._keeper is not None:
            self._keeper.close()

    def connect(self) -> sqlite3.Connection:
        """Return a connection in autocommit."""
        connection = sqlite3.connect(
            f"file:{self.path}?vfs=memdb",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=0.0,
            factory=_Connection,
        )
        connection.disk = self
        # SQLite from 3.41 on gives no name to a file in memory, and rifl.record asks for it.
        connection.execute(
            "CREATE TEMP VIEW pragma_database_list AS "
            f"SELECT 0 AS seq, 'main' AS name, '{self.path}' AS file"
        )
        return connection

    def commit_s(self) -> float:
        """Draw how long the next commit takes."""
        seconds = 0.0003 + 0.0004 * self.random()
        if self.slow_until > self.loop.now:
            self.coverage.hit(Fault.SLOW_DISK, Point.COMMITTING)
            seconds += self.slow_s * self.random()
        return seconds

    def trouble(self) -> sqlite3.Error | None:
        """Return the error that a commit meets now, None if it meets none."""
        if self.fsync_fails:
            self.fsync_fails = False
            self.coverage.hit(Fault.FAILED_FSYNC, Point.COMMITTING)
            return _error("disk I/O error", "SQLITE_IOERR_FSYNC", sqlite3.SQLITE_IOERR)
        if self.full_until > self.loop.now:
            self.coverage.hit(Fault.FULL_DISK, Point.COMMITTING)
            return _error("database or disk is full", "SQLITE_FULL", sqlite3.SQLITE_FULL)
        return None


class _Connection(sqlite3.Connection):
    """A connection whose commits fail when the disk says so."""

    disk: Disk

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" or (not self.in_transaction and sql.startswith("INSERT INTO rifl_call")):
            error = self.disk.trouble()
            if error is not None:
                if "FSYNC" in error.sqlite_errorname and self.disk.random() < 0.5:
                    # It may be there all the same.
                    super().execute(sql, parameters)
                    raise _Written(*error.args) from error
                raise error
        return super().execute(sql, parameters)


class _Written(sqlite3.OperationalError):
    """A failed fsync of a transaction that is found after a restart all the same."""

    sqlite_errorname = "SQLITE_IOERR_FSYNC"
    sqlite_errorcode = sqlite3.SQLITE_IOERR


def was_written(error: Exception) -> bool:
    """Whether a commit that failed is there nevertheless; no process in the run may ask."""
    return isinstance(error, _Written)


def _error(text: str, name: str, code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    error.sqlite_errorcode = code
    return error


class SimulatedMedium(Medium):
    """What a store of one process is given: a disk, and commits that take their time."""

    def __init__(self, process: Process, disk: Disk) -> None:
        self._process = process
        self._disk = disk
        self.journals: list[SimulatedJournal] = []

    def own(self, path: Path, lock_timeout_s: float) -> OwnedFile:
        """Own it at once: a dead process holds nothing."""
        return _Held()

    def guard(self, path: Path) -> Guard:
        """Number the commits: no other process changes the file."""
        return Guard()

    def connect(self, path: Path) -> sqlite3.Connection:
        """Return a connection to the disk."""
        return self._disk.connect()

    def journal(
        self,
        connection: sqlite3.Connection,
        on_health: Callable[[Exception | None], None],
        name: str,
        guard: Guard,
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> Journal:
        """Return a journal without a thread."""
        journal = SimulatedJournal(
            self._process, self._disk, connection, on_health, name, guard, on_commit
        )
        self.journals.append(journal)
        return journal

    def free_bytes(self, path: Path) -> int | None:
        """Say that it is not known."""
        return None

    def _begin(self, step: Callable[[], None]) -> None:
        """Have it done a little later, as one event."""
        self._process.after(0.0001 + 0.0004 * self._disk.random(), step)


class _Held:
    def release(self) -> None:
        """Do nothing."""


class _Bell:
    """Stands for the journal's condition: one thread needs no lock, and rings."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.notify = ring

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class SimulatedJournal(Journal):
    """The journal, its rounds driven by events."""

    def __init__(self, process: Process, disk: Disk, *arguments: Any) -> None:
        self._process = process
        self._disk = disk
        self.under_way: Any = None
        self._timer: Timer | None = None
        self._ended = False
        super().__init__(*arguments)

    def _begin(self) -> None:
        self._wake = _Bell(self._ring)  # type: ignore[assignment]  # see its docstring

    def _ring(self) -> None:
        if self.under_way is None and self._timer is None and not self._ended:
            if self._failing:
                self._timer = self._process.after(self._delay_s, self._round)
            elif self._due():
                self._timer = self._process.after(0.0, self._round)

    def _round(self) -> None:
        self._timer = None
        self.under_way = self._take()
        self._process.after(self._disk.commit_s(), self._finish)

    def _finish(self) -> None:
        taken, self.under_way = self.under_way, None
        if taken is None:
            # It was needed at once, and is done.
            return
        self._ended = not self._write(taken)
        self._ring()

    def submit(self, entry: JournalEntry, *, awaited: bool = False) -> JournalEntry:
        """Queue an entry; who blocks for it commits by ``lead``."""
        super().submit(entry, awaited=awaited)
        if awaited:
            entry.journal = self
        return entry

    @contextlib.contextmanager
    def turn(self, limit_s: float) -> Iterator[None]:
        """Have the file: no other process has it in the midst of an event."""
        yield

    def lead(self) -> None:
        """Commit what waits now, for who would block until it is durable."""
        for _ in range(2):
            # The commit in flight first.
            if not self._ended:
                self.under_way = self.under_way or self._take()
                self._finish()

    def crash(self, *, flushed: bool) -> None:
        """Leave what a crash leaves: a commit in flight is there whole, or not at all."""
        if self.under_way is not None and flushed:
            batch, noted, alone, _ = self.under_way
            self._writer.commit(batch, noted, alone=alone)
        self._connection.close()

    def close(self, timeout_s: float = 10.0) -> None:
        """Make durable what is queued, at once."""
        if self.under_way is not None:
            self._finish()
        if not self._ended:
            self._closing = True
            self._write(self._take())
            self._ended = True
        self._connection.close()
