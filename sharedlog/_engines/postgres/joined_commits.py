"""Commits of the log in transactions of a consumer's store, in the database that has the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, LogUnavailable
from sharedlog._core.steps import Lsns
from sharedlog._engines.checksums import values_of
from sharedlog._engines.postgres.applications import literal
from sharedlog._engines.postgres.connection import PostgresConnection

_REFUSED = "CURP1"
# There is no such function, schema or table, or the role may not look.
_ELSEWHERE = ("42883", "3F000", "42P01", "42501")
_RIGHTS = {
    "log": ("SELECT", "UPDATE"),
    "key": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "entry": ("INSERT",),
    "tag": ("INSERT",),
}
_CHECKED = "SET CONSTRAINTS ALL IMMEDIATE"
_WARN = "SELECT set_config('rifl.durability', 'warn', true)"


class JoinedCommits:
    """A commit as the last of a transaction, in one message with its COMMIT.

    The log's row is locked by it, so nothing is waited for behind it but the disk: deferred
    constraints are checked before, and the client that sends it may hang or crash.
    """

    def __init__(self, log: PostgresConnection, arguments: Callable[[Commit], list[Any]]) -> None:
        """``arguments``: of a commit, as the function takes them."""
        self._log = log
        self._arguments = arguments

    def reached_by(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether a connection's transactions may have commits of this log's; raises psycopg's."""
        log = self._log
        joins = f"{log.schema}.join_1({literal(log.incarnation)}, {literal(log.history)}, '') = ''"
        may = [
            f"has_table_privilege('{log.schema}.{table}', '{right}')"
            for table, rights in _RIGHTS.items()
            for right in rights
        ]
        asked = f"SELECT {' AND '.join((joins, *may))}".encode()
        try:
            with connection.transaction():
                row = psycopg.Cursor(connection, row_factory=tuple_row).execute(asked).fetchone()
        except psycopg.Error as error:
            if error.sqlstate in _ELSEWHERE:
                return False
            raise
        return bool(row and row[0])

    def ending(self, commit: Commit) -> bytes:
        """Return what ends a transaction with a commit, as of now: all of it happens, or nothing.

        SQL without parameters: an error ends the message, and what follows is not done.
        """
        log = self._log
        log.check_usable()
        commit = commit._replace(at_us=time.time_ns() // 1000)
        given = [log.incarnation, log.seen, *self._arguments(commit)]
        if given.pop():
            raise AssertionError("no key of it has a term")
        held = "ARRAY(SELECT encode(each, 'hex') FROM unnest(done.found) AS each)"
        called = f"{log.schema}.commit_1({', '.join(map(literal, given))})"
        refused = f"{log.schema}.refuse_1('found', NULL, array_to_string({held}, ',', '-'))"
        judged = f"CASE WHEN done.found IS NOT NULL THEN {refused}::text END"
        statements = (
            _CHECKED,
            *([_WARN] if log.warns else []),
            f"SELECT done.first, done.last, {judged} FROM {called} AS done",  # noqa: S608
            "COMMIT",
        )
        return "; ".join(statements).encode()

    def lsns(self, results: Sequence[Any]) -> Lsns:
        """Return which a commit got, by libpq's results of ``ending``: the last is COMMIT's."""
        first, last = (int(results[-2].get_value(0, at)) for at in range(2))
        return Lsns(first, last)

    def refusal(self, error: psycopg.Error, commit: Commit) -> Exception | None:
        """Return what refused a commit, ``Refused`` too; None: it was something else of it."""
        if error.sqlstate != _REFUSED:
            return None
        facts = json.loads(error.diag.message_detail or "{}")
        if facts["why"] == "found":
            held = [
                None if each == "-" else bytes.fromhex(each) for each in facts["text"].split(",")
            ]
            asked = [each.key for each in commit.conditions]
            try:
                return Refused(values_of(dict(zip(asked, held, strict=True))))
            except CorruptLog as damaged:
                return damaged
        found = self._log.meaning(facts)
        if isinstance(found, LogUnavailable):
            found.appended = False
        return found
