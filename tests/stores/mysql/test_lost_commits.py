"""MariaDB's connection lost at COMMIT, of a handler's own transaction (DESIGN §6)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import rifl
import rifl.aio
from tests.stores.lost_commits import agrees, served
from tests.stores.postgres.servers import DroppingProxy

INSERT = "INSERT INTO effects VALUES ('x')"


class Losing:
    """Cuts the handler's connection at its next COMMIT; see ``lost_commits.Losing``."""

    def __init__(self, server: Any) -> None:
        self._proxy = DroppingProxy(server.port)
        self._wanted = ""
        self.server, self.address, self.struck = server, self._proxy.address, 0

    def at_next_commit(self, what: str) -> None:
        """``what``: ``answer lost`` or ``commit lost``."""
        self._wanted = what

    def strike(self) -> None:
        """The next COMMIT."""
        if self._wanted:
            self._proxy.drop_at(b"COMMIT", forward=self._wanted == "answer lost")
            self._wanted = ""
            self.struck += 1

    def close(self) -> None:
        """Cut nothing any more."""
        self._proxy.close()

    def connect(self) -> Any:
        """Return a connection that may be cut."""
        return self.server.connect(port=int(self.address.rpartition(":")[2]))


def _by_pymysql(losing: Losing) -> Any:
    def handler(request: bytes, context: Any) -> bytes:
        with losing.connect() as connection:
            connection.cursor().execute(INSERT)
            rifl.record(context, b"done", connection)
            losing.strike()
            connection.commit()
        return b"done"

    return handler


def _in_a_block(losing: Losing) -> Any:
    def handler(request: bytes, context: Any) -> bytes:
        with losing.connect() as connection, rifl.transaction(context, connection):
            connection.cursor().execute(INSERT)
            rifl.record(context, b"done", connection)
            losing.strike()
        return b"done"

    return handler


def _in_a_block_on_a_loop(losing: Losing) -> Any:
    async def handler(request: bytes, context: Any) -> bytes:
        with losing.connect() as connection:
            async with rifl.aio.transaction(context, connection):
                connection.cursor().execute(INSERT)
                await rifl.aio.record(context, b"done", connection)
                losing.strike()
        return b"done"

    return handler


def _by_sqlalchemy(losing: Losing) -> Any:
    engine = sqlalchemy.create_engine(
        "mysql+pymysql://", creator=losing.connect, poolclass=sqlalchemy.NullPool
    )

    def handler(request: bytes, context: Any) -> bytes:
        with Session(engine) as session, session.begin():
            session.execute(sqlalchemy.text(INSERT))
            rifl.record(context, b"done", session)
            losing.strike()
        return b"done"

    return handler


@pytest.mark.parametrize("what", ["answer lost", "commit lost"])
@pytest.mark.parametrize(
    ("driver", "aio"),
    [
        (_by_pymysql, False),
        (_in_a_block, False),
        (_in_a_block_on_a_loop, True),
        (_by_sqlalchemy, False),
    ],
    ids=["PyMySQL", "a block of ours", "a block on a loop", "SQLAlchemy"],
)
def test_effects_and_what_is_told_agree(shared_mariadb, url, effects, driver, aio, what):
    """The store is asked what became of the commit, and its word is told (DESIGN §4, §6)."""
    losing = Losing(shared_mariadb)
    # Nobody is taken for dead meanwhile.
    url = url.replace("dead_after_s=0.6", "dead_after_s=30")
    try:
        with served(url, driver(losing), aio=aio) as target:
            agrees(target, losing, effects, what)
    finally:
        losing.close()
