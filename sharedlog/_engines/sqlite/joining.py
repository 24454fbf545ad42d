"""Appends in transactions of the application's, in the file that holds the log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import Any, cast

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, NoSuchLog, WrongTransaction
from sharedlog._core.steps import Get, Lsns, Rule
from sharedlog._core.within import Within, append_within
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import Limits
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.applications import Applications, PlainConnection, Work
from sharedlog._engines.sqlite.file import LogFile

_FILE = "SELECT max(file) FROM pragma_database_list WHERE name = 'main'"
# Takes the file's lock, and changes nothing: what is read then is what others left.
_LOCK = "UPDATE main.sharedlog_head SET silent = silent"


class FileTransactions:
    """Appends on connections that are the application's, or a store's that lends its own.

    SQLite's lock, held from the append until the transaction ends, is what keeps others from a
    place in between.
    """

    def __init__(self, file: LogFile, limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._applications = Applications()

    def append(self, given: Any, within: Within, seen: int) -> None:
        """Append in the transaction of ``given``; ``seen``: a tail that the log had."""
        self._applications.run(given, self._check, self._work(within, seen))

    async def append_aio(self, given: Any, within: Within, seen: int) -> None:
        """The same for an asynchronous connection, or a blocking one."""
        await self._applications.run_aio(given, self._check, self._work(within, seen))

    def carry_out(self, given: sqlite3.Connection, rule: Rule[Any], seen: int) -> None:
        """Carry an append out in the transaction of ``given``, which has the file's lock."""
        with self._file.lent():
            self._carry_out(PlainConnection(given), rule, seen)

    def _work(self, within: Within, seen: int) -> Work:
        def work(connection: PlainConnection) -> None:
            self._lock(connection)
            with self._file.lent():
                self._write(connection, within, seen)

        return work

    def _lock(self, connection: PlainConnection) -> None:
        try:
            connection.execute(_LOCK)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_ERROR":
                raise NoSuchLog(f"the connection's file holds no log: {error}") from error
            raise

    def _write(self, connection: PlainConnection, within: Within, seen: int) -> None:
        rows.check(cast(sqlite3.Connection, connection), str(self._file.path))
        self._carry_out(connection, append_within(within), seen)

    def _carry_out(self, connection: PlainConnection, rule: Rule[Any], seen: int) -> None:
        plain = cast(sqlite3.Connection, connection)
        head = rows.head_of(plain)
        if head.tail < seen:
            raise CorruptLog(f"the log went back: it ends at {head.tail}, and {seen} was seen")
        answer: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                match rule.send(answer):
                    case Get(keys):
                        answer = rows.values_of(plain, keys)
                    case Commit() as commit:
                        try:
                            answer = self._commit(plain, head, commit)
                        except Refused as refused:
                            rule.throw(refused)
                            raise CorruptLog(
                                "what was read under the file's lock is no longer there"
                            ) from refused

    def _commit(self, connection: sqlite3.Connection, head: rows.Head, commit: Commit) -> Lsns:
        commit = commit._replace(at_us=time.time_ns() // 1000)
        check_commit(commit, self._limits)
        batch = rows.WriteBatch(connection, head, {})
        found = batch.add(commit)
        if isinstance(found, Refused):
            raise found
        batch.write()
        return found

    def _check(self, connection: PlainConnection) -> None:
        with self._file.lent():
            (found,) = connection.execute(_FILE).fetchone()
        name, path = os.fsdecode(found or ""), self._file.path
        if not (name and os.path.samefile(name, path)):
            raise WrongTransaction(
                f"the log lives in {path}, and the connection is to {name or 'memory'}: they "
                "cannot commit together. sharedlog.outbox is for a log that lives elsewhere"
            )
