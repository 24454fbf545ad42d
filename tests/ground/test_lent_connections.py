"""Connections of PostgreSQL that are lent: what happens to a statement that is left in flight."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from _rifl_ground.loans import Loan
from _rifl_ground.postgres import lent
from _rifl_ground.postgres.lent import LentAsyncConnection, take_back_async
from tests.helpers.log_servers import shared_postgres

__all__ = ["shared_postgres"]


class Over(Exception):
    """What a loan refuses with."""


@pytest.mark.parametrize("ends", ["by itself", "cancelled", "cut off"])
def test_a_coroutines_statement_is_waited_for_then_cancelled_then_cut_off(
    shared_postgres: Any, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Nothing is in flight once the loan was taken back, and nothing is sent from then on."""

    async def not_cancelled(*_: Any, **__: Any) -> None:
        pass

    if ends != "by itself":
        monkeypatch.setattr(lent, "IN_FLIGHT_S", 0.05)
    if ends == "cut off":
        monkeypatch.setattr(lent, "_CANCEL_S", 0.3)
        monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", not_cancelled)
    seconds = 0.2 if ends == "by itself" else 30

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shared_postgres.url()) as connection:
            loan = Loan(Over)
            given = LentAsyncConnection(connection, loan)
            left = asyncio.ensure_future(given.execute(f"SELECT pg_sleep({seconds})"))
            while not connection.lock.locked():
                await asyncio.sleep(0)
            assert await take_back_async(connection, loan) is (ends != "cut off")
            assert connection.closed is (ends == "cut off")
            assert not connection.lock.locked()
            (error,) = await asyncio.gather(left, return_exceptions=True)
            kinds: dict[str, Any] = {
                "by itself": psycopg.AsyncCursor,
                "cancelled": psycopg.errors.QueryCanceled,
                "cut off": psycopg.OperationalError,
            }
            assert isinstance(error, kinds[ends])
            for act in (given.execute("SELECT 1"), given.close(), given.cancel_safe()):
                with pytest.raises(Over):
                    await act
            with pytest.raises(Over):
                given.cancel()
            if ends == "cut off":
                return
            await connection.rollback()
            found = await (await connection.execute("SELECT 1")).fetchone()
            assert found == (1,)

    asyncio.run(run())
