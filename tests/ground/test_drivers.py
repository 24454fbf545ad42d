"""Connections in what SQLAlchemy holds them in."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine

from _rifl_ground.drivers import driver_connection, driver_connection_async
from rifl._stores.alchemy import watch
from rifl._stores.errors import WrongDatabase


def test_a_registry_of_sessions_stands_for_the_threads_own(tmp_path: Path) -> None:
    """Its connection is found, and its commit is refused in a block (§6)."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 's.db'}")
    sessions = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    try:
        assert isinstance(driver_connection(sessions), sqlite3.Connection)
        watched = watch(sessions)
        assert watched is not None
        with pytest.raises(WrongDatabase):
            sessions.commit()
        watched.end()
        sessions.commit()
    finally:
        sessions.remove()
        engine.dispose()


async def test_a_registry_of_asynchronous_sessions_stands_for_the_tasks_own(
    tmp_path: Path,
) -> None:
    """The same for asyncio (§6)."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 's.db'}")
    sessions = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    try:
        assert type(await driver_connection_async(sessions)).__module__.startswith("aiosqlite")
        watched = watch(sessions)
        assert watched is not None
        with pytest.raises(WrongDatabase):
            await sessions.commit()
        watched.end()
    finally:
        await sessions.remove()
        await engine.dispose()
