"""PostgreSQL's connection lost at COMMIT, by each driver, through a real Toxiproxy (DESIGN §6)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import rifl
import rifl.aio
from tests.stores.lost_commits import agrees, served, toxic

INSERT = "INSERT INTO effects VALUES ('x')"
_QUICK = {"beat_s": 0.1, "dead_after_s": 30, "max_connections": 4}


def _by_psycopg(url: str, losing: Any) -> Any:
    def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        with psycopg.connect(url) as connection:
            connection.execute(INSERT)
            rifl.record(context, b"done", connection)
            losing.strike()
        return b"done"

    return handler


def _in_a_block(url: str, losing: Any) -> Any:
    def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        with psycopg.connect(url) as connection, rifl.transaction(context, connection):
            connection.execute(INSERT)
            rifl.record(context, b"done", connection)
            losing.strike()
        return b"done"

    return handler


def _by_psycopg_async(url: str, losing: Any) -> Any:
    async def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute(INSERT)
            await rifl.aio.record(context, b"done", connection)
            losing.strike()
        return b"done"

    return handler


def _by_sqlalchemy(url: str, losing: Any) -> Any:
    engine = sqlalchemy.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sqlalchemy.NullPool
    )

    def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        with Session(engine) as session, session.begin():
            session.execute(sqlalchemy.text(INSERT))
            rifl.record(context, b"done", session)
            losing.strike()
        return b"done"

    return handler


def _by_sqlalchemy_async(url: str, losing: Any) -> Any:
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sqlalchemy.NullPool
    )

    async def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        async with engine.begin() as connection:
            await connection.execute(sqlalchemy.text(INSERT))
            await rifl.aio.record(context, b"done", connection)
            losing.strike()
        return b"done"

    return handler


@pytest.mark.parametrize("what", ["answer lost", "commit lost"])
@pytest.mark.parametrize(
    ("driver", "aio"),
    [
        (_by_psycopg, False),
        (_in_a_block, False),
        (_by_psycopg_async, True),
        (_by_sqlalchemy, False),
        (_by_sqlalchemy_async, True),
    ],
    ids=["psycopg", "a block of ours", "psycopg async", "SQLAlchemy", "SQLAlchemy async"],
)
def test_effects_and_what_is_told_agree(
    shared_server, schema, database, tmp_path, driver, aio, what
):
    """The store is asked what became of the commit, and its word is told (DESIGN §4, §6)."""

    def effects():
        row = database.execute("SELECT count(*) FROM effects").fetchone()
        database.rollback()
        return row[0]

    with toxic(tmp_path, shared_server.port) as losing:
        handler = driver(shared_server.url(f"127.0.0.1:{losing.port}"), losing)
        with served(shared_server.url(schema=schema, **_QUICK), handler, aio=aio) as target:
            agrees(target, losing, effects, what)
