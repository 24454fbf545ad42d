"""Connections of applications to PostgreSQL, and the log's statements in their transactions."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from _rifl_ground.postgres.marked import commits_by_itself
from sharedlog._core.errors import WrongTransaction


def check_begun(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise ``WrongTransaction`` unless there is a transaction, or a statement begins one."""
    if connection.closed:
        raise WrongTransaction("the connection is closed")
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise WrongTransaction("in pipeline mode nothing can be appended")
    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise WrongTransaction("the transaction has failed: roll it back")
    if commits_by_itself(connection):
        raise WrongTransaction(
            "the connection is in autocommit mode: begin a transaction before append_in"
        )


def literal(value: bytes | str | int | list[Any] | None) -> str:
    """Return a value as SQL has it, whatever the session's settings for text are.

    Texts are the library's own names, without a quote or a backslash in them.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'::bytea"
    if isinstance(value, list):
        kind = "int8" if value and isinstance(value[0], int) else "bytea"
        return f"ARRAY[{', '.join(map(literal, value))}]::{kind}[]"
    return f"'{value}'"
