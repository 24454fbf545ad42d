"""``Engine`` over a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, LogFull, NoSuchLog, TrimmedLog
from sharedlog._core.steps import Lsns, Rows, Rule
from sharedlog._core.within import Within
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import Limits
from sharedlog._engines.forks import belongs_here
from sharedlog._engines.group_commit import GroupCommit, PendingCommit
from sharedlog._engines.owner import LOG
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.counting import counting_of, renewals_of
from sharedlog._engines.sqlite.creation import BUSY_S
from sharedlog._engines.sqlite.file import LogFile
from sharedlog._engines.sqlite.joining import FileTransactions
from sharedlog._engines.sqlite.renewals import RenewedTerms
from sharedlog._engines.sqlite.rows import Head, WriteBatch
from sharedlog._engines.sqlite.terms import FileTerms, Terms, read_terms
from sharedlog._engines.sqlite.watcher import Watcher
from sharedlog._engines.terms import BootClock, Term
from sharedlog._engines.waiting import Waiters

# How many keys' values are kept, of those that conditions ask for.
_KEPT = 50_000
# How many entries one transaction removes.
_PIECE = 1000


class SqliteEngine:
    """An ``Engine``; any thread, any number of processes of this machine.

    Concurrent appends of threads share one transaction, and so one sync of the disk; processes
    take turns, each waiting ``timeout_s`` at most for its own. What returned survives a loss of
    power, as far as the disk keeps what it was told to sync. A process that dies leaves whole
    commits only.

    A failed sync, and a file that is no longer the one which was opened, stop the engine for good
    (``LogStopped``). An older copy, or a file without its ``-wal``, is ``CorruptLog``: beside the
    file a note says how many commits it held. No network file system.
    """

    durability = "on this machine's disk before an append returns (WAL, a sync with each)"
    limits = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = BUSY_S,
        clock: BootClock | None = None,
        file: LogFile | None = None,
    ) -> None:
        """Open the log. Raises ``NoSuchLog``, ``NewerFormat``, ``CorruptLog``.

        ``clock``: what keys' terms end by, of all processes that have it open. ``file``: it, open
        already, where the log is one under tables of another name.
        """
        self._file = _opened(path.absolute(), timeout_s) if file is None else file
        self._group_commit = GroupCommit(self._write)
        self._joining = FileTransactions(self._file, self.limits)
        self._waiters = Waiters()
        self._watcher = Watcher(self._file, self._waiters)
        # What the file held when this process looked last; valid until another process writes.
        self._version = -1
        self._head = Head(0, 0, 0, 0, 0)
        # The highest tail that was seen, or one below it, which claims less.
        self._seen = 0
        self._values: dict[str, bytes | None] = {}
        self._newest: list[tuple[int, str]] = []
        self._terms: dict[str, Term] = {}
        # Of a log under tables of another name none are kept beside the file.
        renewals = RenewedTerms(renewals_of(path.absolute())) if file is None else None
        self._boots = FileTerms(clock, renewals)
        belongs_here(self)

    def is_in(self, path: Path) -> bool:
        """Whether this file is where the log is."""
        with suppress(OSError):
            return self._file.path.samefile(path)
        return False

    def commit(self, commit: Commit) -> Lsns:
        """Commit, or raise ``Refused`` with the values of the conditions' keys."""
        check_commit(commit, self.limits)
        return self._group_commit.commit(commit)

    def _write(self, together: Sequence[PendingCommit]) -> None:
        """Judge and write them in their order, in one transaction."""
        try:
            found = self._written(together)
        except (LogFull, CorruptLog):
            if len(together) == 1:
                raise
            # There may be room for some, and a damaged key fails only its own commits.
            for each in together:
                try:
                    each.done(self._written([each])[0])
                except (LogFull, CorruptLog) as error:
                    each.failed(error)
            return
        for each, one in zip(together, found, strict=True):
            each.done(one)

    def _written(self, together: Sequence[PendingCommit]) -> list[Lsns | Refused]:
        seen = self._seen
        try:
            with self._file.writing() as connection:
                self._look(connection, seen)
                terms = Terms(self._terms, self._boots)
                batch = WriteBatch(connection, self._head, self._values, terms, self._newest)
                found = [batch.add(each.commit) for each in together]
                if not batch.empty or (terms.renewed and not terms.write_beside()):
                    batch.write()
                head = batch.head
                self._file.commits = head.commits
        except BaseException:
            # What is kept may be what was not written.
            self._version = -1
            raise
        self._head, self._seen = head, head.tail
        if self._waiters.anybody and head.tail > seen:
            self._waiters.hint()
        return found

    def _where(self) -> Head:
        seen = self._seen
        with self._file.reading() as connection:
            return self._head_of(connection, seen)

    def _look(self, connection: sqlite3.Connection, seen: int) -> None:
        """Forget what is kept, if others have written since; in a transaction."""
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._values) > _KEPT:
            self._values.clear()
            self._newest.clear()
            self._head = self._head_of(connection, seen)
            self._terms = read_terms(connection)
            self._version = version

    def _head_of(self, connection: sqlite3.Connection, seen: int) -> Head:
        """Return where the log stands, at least where it was seen before the transaction."""
        head = rows.head_of(connection)
        if head.tail < seen:
            raise CorruptLog(f"the log went back: it ends at {head.tail}, and {seen} was seen")
        self._seen = head.tail
        return head

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        with self._file.reading() as connection:
            terms = Terms(read_terms(connection), self._boots)
            found = rows.values_of(connection, keys)
        return {key: None if terms.over(key) else value for key, value in found.items()}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        with self._file.reading() as connection:
            terms = Terms(read_terms(connection), self._boots)
            found = rows.scan(connection, prefix)
        return {key: value for key, value in found.items() if not terms.over(key)}

    def damaged(self) -> list[str]:
        """Return in words which keys are damaged."""
        seen = self._seen
        with self._file.reading() as connection:
            self._head_of(connection, seen)
            return rows.damaged(connection)

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term: infinite without one, 0.0 if it is absent."""
        with self._file.reading() as connection:
            left_s = Terms(read_terms(connection), self._boots).remaining_s(key)
            value = rows.values_of(connection, (key,))[key]
        if left_s is not None:
            return left_s
        return 0.0 if value is None else float("inf")

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        seen = self._seen
        with self._file.reading() as connection:
            head = self._head_of(connection, seen)
            if after < head.removed:
                raise TrimmedLog(f"what follows LSN {after} was trimmed", head.removed + 1)
            if tag is None:
                found, cut = rows.read(connection, after, limit, head.tail)
            else:
                found, cut = rows.read_tagged(connection, tag, after, limit, head)
        return Rows(found, found[-1].lsn if cut else max(after, head.tail))

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        return self._where().tail

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        return self._where().removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail."""
        with self._watcher.watching():
            return self._waiters.wait(self.tail, after, timeout_s)

    def remove(self, through: int) -> None:
        """Remove the rows through this LSN, and their tags; idempotent."""
        while True:
            seen = self._seen
            with self._file.writing() as connection:
                self._look(connection, seen)
                head = self._head
                last = min(through, head.tail, head.removed + _PIECE)
                if last <= head.removed:
                    return
                self._version = -1
                rows.remove(connection, head, last)

    def append_in(self, connection: Any, within: Within) -> None:
        """Append in the transaction of a connection, which commits it or rolls it back."""
        self._joining.append(connection, within, self._seen)

    async def append_in_aio(self, connection: Any, within: Within) -> None:
        """Append in the transaction of an asynchronous connection, or of a blocking one."""
        await self._joining.append_aio(connection, within, self._seen)

    def carry_in(self, connection: sqlite3.Connection, rule: Rule[Any]) -> None:
        """Carry an append out in a transaction that holds the file's lock; its user commits it."""
        self._joining.carry_out(connection, rule, self._seen)

    def make_way(self) -> str:
        """Return "": no process can break the lock of a file, so writers wait for it."""
        return ""

    def close(self) -> None:
        """Close files and connections; idempotent."""
        self._waiters.close()
        self._watcher.close()
        self._file.close()


def check_there(path: Path) -> None:
    """Raise ``NoSuchLog``, or ``CorruptLog``, if there is no file, or an empty one."""
    if path.is_file() and path.stat().st_size:
        return
    try:
        noted = counting_of(path).note.read()
    except OSError:
        noted = None
    if noted:
        raise CorruptLog(
            f"{path} is missing or empty, and held a log of {noted} commits: bring the "
            "right file back; create makes a new log, without what was in it"
        )
    raise NoSuchLog(f"{path}: no log is there; create makes one")


def _opened(path: Path, timeout_s: float) -> LogFile:
    counting = counting_of(path)
    check_there(path)
    file = LogFile(path, BUSY_S, LOG, create=False)
    file.turn_s = timeout_s
    try:
        with file.reading() as connection:
            rows.check(connection, str(path))
        file.guard(counting, new=False)
    except BaseException:
        file.close()
        raise
    return file
