"""A log file: its connections, its transactions, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _rifl_ground.files import open_beside
from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.sqlite.failures import Stopped, is_busy, is_damage, name_of
from _rifl_ground.sqlite.guard import FileGuard
from _rifl_ground.sqlite.long_wal import LongWal
from _rifl_ground.sqlite.opening import Connection, connect
from _rifl_ground.sqlite.write_lock import holder_of
from _rifl_ground.system import lock_opened, unlock_opened
from sharedlog._core.errors import ReentrantUse
from sharedlog._engines.owner import Owner, nothing_done
from sharedlog._engines.sqlite.commit_note import CommitNote

# How long one that waits is given way to, and for how long it is passed over if it did not come:
# it may have been stopped.
_GIVE_S, _PASS_OVER_S = 0.5, 10.0
_LOOK_S = 0.0002


class WriteFairness:
    """That of one handle on the file; one thread at a time. Without its file all locks are free.

    The lock is the handle's (of the open file), and goes with its process.
    """

    def __init__(self, path: Path) -> None:
        """``path``: a file that all who write have; it is not made."""
        self._file: int | None = None
        self._waits = False
        self._passed_over_until = 0.0
        with contextlib.suppress(OSError):
            self._file = open_beside(path, os.O_WRONLY)

    def give_way(self, wait: Callable[[float], object]) -> None:
        """Let one that waits go first. ``wait`` pauses; True ends it."""
        if not self._awaited():
            return
        began = time.monotonic()
        if began < self._passed_over_until:
            return
        while self._awaited():
            if time.monotonic() - began >= _GIVE_S:
                self._passed_over_until = time.monotonic() + _PASS_OVER_S
                return
            if wait(_LOOK_S):
                return

    def waits(self) -> None:
        """Have others give way to this one, unless they do to another one already."""
        if not self._waits and self._file is not None:
            with contextlib.suppress(OSError):
                self._waits = lock_opened(self._file)

    def came(self) -> None:
        """It waits no more."""
        if self._waits and self._file is not None:
            self._waits = False
            with contextlib.suppress(OSError):
                unlock_opened(self._file)

    def close(self) -> None:
        """Close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _awaited(self) -> bool:
        if self._file is None:
            return False
        # Others that ask at the same moment have it, too. One that begins to wait just then does
        # not get it, and comes again.
        try:
            if not lock_opened(self._file, shared=True):
                return True
            unlock_opened(self._file)
        except OSError:
            pass
        return False


_TABLES = "sharedlog_"


class Prefixed(Connection):
    """A connection whose statements about a log's tables are about those with its prefix."""

    prefix = _TABLES

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._named: dict[str, str] = {}

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute, as ``sqlite3.Connection``; a value that is no UTF-8 is damage."""
        if self.prefix is not _TABLES:
            sql = self._named.get(sql) or self._name(sql)
        try:
            return super().execute(sql, parameters)
        except UnicodeDecodeError as error:
            raise _damaged(error) from error

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Execute for many, as ``sqlite3.Connection``."""
        if self.prefix is not _TABLES:
            sql = self._named.get(sql) or self._name(sql)
        try:
            return super().executemany(sql, parameters)
        except UnicodeDecodeError as error:
            raise _damaged(error) from error

    def _name(self, sql: str) -> str:
        # Our own statements, of which there are few.
        return self._named.setdefault(sql, sql.replace(_TABLES, self.prefix))


def _damaged(error: UnicodeDecodeError) -> sqlite3.Error:
    # SQLite's message quotes a damaged schema, and the module cannot read the message.
    return sqlite3.DatabaseError(f"Could not decode to UTF-8 what SQLite says of it: {error}")


# Of looks whether the file is free: others give way to one that waits, see ``WriteFairness``.
_TURN_S, _GROWTH, _LONGEST_TURN_S = 0.0002, 1.02, 0.002
# How much of the WAL is moved into the file at once: pages that many commits wrote, once.
_CHECKPOINT_PAGES = 4000
# A WAL that was long once gives its room back.
_WAL_BYTES = 64 << 20


class Counting(NamedTuple):
    """How a log's commits are counted in its own tables, and noted beside the file.

    ``held``: how many there are, also within a transaction that adds one. ``always_noted``: a log
    with commits and without a note has lost it.
    """

    note: CommitNote
    held: Callable[[sqlite3.Connection], int]
    always_noted: bool = False


def check_counted(
    path: Path, counting: Counting, held: int, noted: int | None, owner: Owner
) -> None:
    """Raise ``corrupt`` if a file with so many commits lacks some that are noted beside it."""
    if noted is None and held and counting.always_noted:
        raise owner.corrupt(
            f"{counting.note.path} is missing, which says how many commits the log held: "
            "this may be an older copy. Bring it back. If this was "
            f"restored from a backup, or it is lost: {owner.remedy}"
        )
    if noted is not None and held < noted:
        raise owner.corrupt(
            f"{path} lacks {noted - held} commits that were acknowledged: it is an older "
            f"copy, or its -wal file is missing. Bring the right files back. If they are lost, "
            f"and the log is to go on with what is here: {owner.remedy}"
        )


class LogFile:
    """One process's way to the file, safe in any thread.

    A connection for writing, one for reading, one to notice that others wrote; each
    under a lock of its own. A transaction is visible only when it is on the disk.

    Once a sync has failed, or the files are not those that were opened (``FileGuard``), nothing is
    written or read here any more.
    """

    def __init__(self, path: Path, timeout_s: float, owner: Owner, *, create: bool) -> None:
        self.path = path
        self._owner = owner
        self._create = create
        self._timeout_s = timeout_s
        # How long one waits to write while another connection does.
        self.turn_s = timeout_s
        self._guard = FileGuard(path)
        self._told_stopped = False
        self.closing = threading.Event()
        self._locks = tuple(OwnedLock(ReentrantUse) for _ in range(3))
        self._writer, self._reader, self._watcher = self._connect()
        self._long_wal = LongWal(self._writer, self._guard)
        # Of the log whose commits are counted, once it is known.
        self._counting: Counting | None = None
        # How many there are after the transaction that writes, where its writer knows that.
        self.commits: int | None = None
        self._fairness: WriteFairness | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give an immediate transaction, committed at the end, undone by any error."""
        with self._locks[0]:
            self._check_open()
            if self._guard.wal_bytes >= self._long_wal.tend_at or self._long_wal.pinned:
                self._tend()
            self.commits = None
            try:
                # Within: a signal's exception may come as soon as it has begun.
                self._begin()
                self._guarded(self._guard.begun, self._writer, begun=False)
                yield self._writer
                counting, commits = self._counting, self.commits
                if commits is None:
                    commits = counting.held(self._writer) if counting is not None else 0
                raised = None if counting is None else self._guard.mark.write(self._writer)
                self._writer.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise self._meaning(error) from error
                raise
            # What was committed to files that went meanwhile is nowhere, or comes back with them.
            # No caller was told of it.
            self._guarded(self._guard.committed, raised)
            if counting is None or counting.note.raise_to(commits):
                return
        # Without the lock: who handles events may use the log.
        self._owner.events.error("commit_note_gone", file=str(counting.note.path))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a transaction that sees the file as of one moment."""
        with self._locks[1]:
            self._check()
            try:
                if self._reader.in_transaction:
                    # An interrupt kept the last one from its end.
                    self._reader.execute("ROLLBACK")
                self._reader.execute("BEGIN")
                yield self._reader
            except sqlite3.Error as error:
                raise self._meaning(error) from error
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._reader.execute("ROLLBACK")

    @contextlib.contextmanager
    def watching(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that never writes, outside of a transaction."""
        with self._locks[2]:
            self._check()
            try:
                yield self._watcher
            except sqlite3.Error as error:
                raise self._meaning(error) from error

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Look after what is done to the file on a connection of its user's.

        Raises as the others where this handle may not be used, or an error of SQLite's means
        something.
        """
        self._check()
        try:
            yield
        except sqlite3.Error as error:
            raise self._meaning(error) from error

    def under(self, prefix: str) -> None:
        """Have statements about tables ``sharedlog_...`` be about those with this prefix instead.

        So a file holds several logs, each under tables of its own.
        """
        for connection in (self._writer, self._reader, self._watcher):
            connection.prefix = prefix

    def guard(self, counting: Counting, *, new: bool) -> None:
        """Count a log's commits from now on, and remember which files these are.

        ``new``: whatever is noted is of a log that was there before. Raises ``corrupt`` if the
        file lacks commits that were acknowledged: it is an older copy, or its ``-wal`` is missing.
        """
        noted = 0 if new else self.noted(counting.note)
        with self.reading() as connection:
            held = counting.held(connection)
        check_counted(self.path, counting, held, noted, self._owner)
        self._counting = counting
        counting.note.raise_to(held)
        if self._fairness is None:
            self._fairness = WriteFairness(counting.note.path)
        with self._locks[1]:
            try:
                self._guard.opened(self._reader)
            except sqlite3.Error as error:
                raise self._meaning(error) from error

    def noted(self, note: CommitNote) -> int | None:
        """Return how many commits are noted, None if nothing is; raises ``unavailable``."""
        try:
            return note.read()
        except OSError as error:
            raise self._owner.unavailable(f"cannot read {note.path}: {error}") from error

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.closing.set()
        connections = (self._writer, self._reader, self._watcher)
        for lock, connection in zip(self._locks, connections, strict=True):
            with lock:
                connection.close()
        with self._locks[0]:
            if self._counting is not None:
                self._counting.note.close()
            self._guard.closed()
            if self._fairness is not None:
                self._fairness.close()

    def _connect(self) -> tuple[Prefixed, Prefixed, Prefixed]:
        made: list[Prefixed] = []
        try:
            for _ in self._locks:
                # A file that went meanwhile is not made anew by looking at it.
                made.append(
                    connect(
                        self.path,
                        Prefixed,
                        busy_s=self._timeout_s,
                        create=self._create,
                        wal=not made,
                        wal_kept_bytes=_WAL_BYTES,
                        checkpoint_pages=_CHECKPOINT_PAGES,
                    )
                )
            # It waits for others by itself, see there.
            made[0].execute("PRAGMA busy_timeout=0")
            return made[0], made[1], made[2]
        except BaseException as error:
            for connection in made:
                connection.close()
            if isinstance(error, Stopped):
                raise self._owner.not_begun(str(error)) from error
            if isinstance(error, sqlite3.Error):
                raise self._meaning(error) from error
            raise

    def _begin(self) -> None:
        """Begin to write, in turn with other processes.

        SQLite itself looks ever more seldom, up to ten times a second, and finds the file taken
        as long as another process writes one transaction after the other.
        """
        # An interrupt may have kept the last one from its end.
        self._roll_back()
        end = time.monotonic() + self.turn_s
        pause_s = _TURN_S
        fairness = self._fairness
        if fairness is not None:
            fairness.give_way(self.closing.wait)
        try:
            while True:
                try:
                    self._writer.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if not is_busy(error):
                        raise
                    if time.monotonic() >= end:
                        raise self._taken() from error
                else:
                    return
                if fairness is not None:
                    fairness.waits()
                if self.closing.wait(pause_s):
                    raise self._owner.not_begun("the log engine is closed")
                pause_s = min(pause_s * _GROWTH, _LONGEST_TURN_S)
        finally:
            if fairness is not None:
                fairness.came()

    def _tend(self) -> None:
        """Raise what says that there is no room, unless the WAL could be emptied."""
        self._guarded(self._long_wal.tend, begun=False)
        if self._long_wal.pinned is not None:
            raise self._owner.full(f"{self.path}: {self._long_wal.pinned}")

    def _taken(self) -> Exception:
        """Build what is raised where the file did not come free in time: nothing was begun."""
        pid = holder_of(self.path)
        if pid == os.getpid():
            who = (
                "this process itself has a transaction open on it, on another connection (one of "
                "append_in, say), which has to end first"
            )
        else:
            who = f"{'another connection' if pid is None else f'process {pid}'} writes it"
        return nothing_done(
            self._owner.unavailable(f"{self.path} was not free within {self.turn_s:g} s: {who}")
        )

    def _check(self) -> None:
        """Raise what says that nothing is begun here any more."""
        self._check_open()
        self._guarded(self._guard.look, begun=False)

    def _check_open(self) -> None:
        if self.closing.is_set():
            raise self._owner.not_begun("the log engine is closed")

    def _meaning(self, error: sqlite3.Error) -> Exception:
        stopped = self._guard.met(error)
        if stopped is not None:
            return self._stop(stopped)
        name = name_of(error)
        if is_damage(error) or name == "SQLITE_ERROR":
            # SQLITE_ERROR: no such table or column, where there was one.
            return self._owner.corrupt(f"{self.path} is damaged, or no log: {error}")
        if "decode to UTF-8" in str(error):
            # An error of Python's module: this library writes no such text.
            return self._owner.corrupt(f"{self.path} is damaged: {error}")
        if name == "SQLITE_FULL":
            return self._owner.full(f"{self.path}: there is no room on its disk: {error}")
        if name == "SQLITE_IOERR_WRITE":
            # Whatever was written is without an end that could be taken for a commit.
            return self._owner.full(
                f"{self.path} could not be written: a quota, a limit, or its disk: {error}"
            )
        return self._owner.unavailable(f"{self.path} cannot be used now: {error}")

    def _roll_back(self) -> None:
        if not self._writer.in_transaction:
            return
        try:
            self._writer.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._guard.stopped = Stopped(
                f"{self.path}: a transaction could not be undone: {error}"
            )

    def _guarded(self, look: Callable[..., object], *given: object, begun: bool = True) -> None:
        """Look after the files; ``begun``: the commit may have happened."""
        try:
            look(*given)
        except Stopped as error:
            raise self._stop(error, begun=begun) from error

    def _stop(self, stopped: Stopped, *, begun: bool = True) -> Exception:
        why = str(stopped)
        if not self._told_stopped:
            self._told_stopped = True
            self._owner.events.critical(self._owner.event, why=why)
        return self._owner.stopped(why) if begun else self._owner.not_begun(why)
