"""The commit of a consumer's transaction in PostgreSQL that appends to a log in that database."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.postgres.marked import let_go
from sharedlog._consumer.joined_append import Held, JoinedAppend
from sharedlog._core.commit import Refused
from sharedlog._engines.postgres.joined_commits import JoinedCommits


def commit_with(
    connection: psycopg.Connection[Any], commits: JoinedCommits, append: JoinedAppend
) -> Held:
    """Commit a connection's transaction with an append; what the append's keys hold then.

    Raises why nothing of either is there; psycopg's errors where it was something else, or where
    that is not known.
    """
    if append.commit is None:
        raise AssertionError("it is in the log")
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    try:
        cursor.execute(commits.ending(append.commit), prepare=False)
        lsns = commits.lsns(cursor)
    except psycopg.Error as error:
        found = commits.refusal(error, append.commit)
        if isinstance(found, Refused):
            found = append.refused(found)
        if found is None:
            raise
        raise found from error
    let_go(connection)
    return append.left(lsns)
