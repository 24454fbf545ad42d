"""A connection to one of several logs in a SQLite file."""

from __future__ import annotations

import sqlite3
from typing import Any

from _rifl_ground.sqlite.opening import Connection

_TABLES = "sharedlog_"


class Prefixed(Connection):
    """A connection whose statements about a log's tables are about those with its prefix."""

    prefix = _TABLES

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._named: dict[str, str] = {}

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """See ``sqlite3.Connection``."""
        if self.prefix is not _TABLES:
            sql = self._named.get(sql) or self._name(sql)
        try:
            return super().execute(sql, parameters)
        except UnicodeDecodeError as error:
            raise _damaged(error) from error

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """See ``sqlite3.Connection``."""
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
