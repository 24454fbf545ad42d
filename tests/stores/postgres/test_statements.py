"""Statements that are packed here, beside psycopg's (rifl._stores.postgres.statements; §6)."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from rifl._stores.postgres.statements import Statement
from rifl._stores.shared.requests import Abandon, Claim, Found
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.identity import MAX_SEQ
from tests.helpers.waiting import until
from tests.stores.redis.replica import IDEMPOTENT, call

_TYPES = "text int8 bytea bool float8 int8multirange"
_ECHO = """
CREATE FUNCTION {schema}.echo_1(
    a text, b int8, c bytea, d bool, e float8, f int8multirange,
    OUT text, OUT text, OUT bytea, OUT bool, OUT text, OUT text
) LANGUAGE sql AS $$ SELECT a, b::text, c, d, e::text, f::text $$
"""
_VALUES = [
    ("", 0, b"", False, 0, "{}"),
    ("täglich", -1, bytes(range(256)), True, 1.5e-9, "{[1,3),[7,8)}"),
    ("'; \\ %s $1", MAX_SEQ, b"\\x00", True, 1764000000.123456, f"{{[1,{MAX_SEQ})}}"),
    (None, None, None, None, None, None),
]


@pytest.mark.parametrize("values", _VALUES, ids=["empty", "usual", "odd", "none"])
def test_a_value_arrives_as_by_psycopg(replicas, schema, values):
    """What is told and what is answered is what psycopg makes of both (DESIGN §6)."""
    backend = replicas().store._postgres
    with backend.pools.blocking.connection() as connection:
        connection.execute(_ECHO.format(schema=schema))
    echo = Statement(schema, "echo_1", _TYPES, "text text bytea bool text text")
    assert backend.rows(echo, values) == backend.rows(echo.text, values)


def test_an_error_leaves_the_connection_fit_for_use(replicas):
    """A request that failed costs nobody else a connection, and nothing of it stands (§6)."""
    one = replicas()
    backend = one.store._postgres
    client = one.client()
    odd = Claim(call(client, 1), IDEMPOTENT.kind, b"t\0t", one.store.owner, False, 8, 8, 8)
    with backend.pools.blocking.connection() as connection:
        with pytest.raises(psycopg.DataError):
            connection.wait(backend.statements.claim.asking(connection, backend._pack(odd)[1]))
        rows = connection.wait(
            backend.statements.claim.asking(connection, backend._pack(odd._replace(token=b"t"))[1])
        )
    assert rows[0][0] == Found.NEW.value


def test_a_request_that_is_cancelled_leaves_its_connection_fit_for_use(replicas, shared_server):
    """A task is cancelled while PostgreSQL works for it: the next gets its own answer (§4)."""
    one = replicas()
    backend = one.store._postgres
    arriving = call(one.client(), 1)
    attempt = one.store._attempts.new(arriving, IDEMPOTENT)

    async def cancelled():
        asking = asyncio.ensure_future(backend.ask_async(Abandon(arriving, attempt.token)))
        await asyncio.to_thread(until, lambda: _waits(shared_server), "it waits for the lock")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return await one.store.claim(call(arriving.client_id, 2), IDEMPOTENT)

    with shared_server.connect() as holder:
        taken = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))"
        holder.execute(taken, (attempt.token.decode(),))
        assert asyncio.run(cancelled()).verdict is Verdict.NEW
    one.store._attempts.settle(attempt)


def _waits(server):
    with server.connect() as connection:
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return connection.execute(waiting).fetchone() is not None
