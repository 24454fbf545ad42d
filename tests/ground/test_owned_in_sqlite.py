"""``_rifl_ground.sqlite.owned``: what SQLite is told about statements of other code (DESIGN §6)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from _rifl_ground.sqlite.owned import LentState, Owned, keep, kept

INSERT = "INSERT INTO t VALUES (1)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a table."""
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
    return tmp_path / "t.db"


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection as sqlite3 makes it."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        yield connection


def lent(connection: sqlite3.Connection) -> Owned:
    """Lend its transaction, as a block does."""
    owned = kept(connection) or keep(connection)
    owned.lend(connection)
    return owned


def end(connection: sqlite3.Connection, owned: Owned) -> None:
    """Commit it, as a block does."""
    owned.take_back()
    connection.commit()
    owned.free()


@pytest.mark.parametrize(
    "statement", ["WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "script"]
)
def test_what_commits_by_itself_is_noticed(connection: sqlite3.Connection, statement: str) -> None:
    """Python begins before an INSERT, UPDATE or DELETE, and before nothing else."""
    for after in (lambda: None, lambda: connection.execute(INSERT)):
        owned = lent(connection)
        if statement == "script":
            connection.executescript(INSERT)
        else:
            connection.execute(statement)
        after()
        assert owned.state() is LentState.UNKNOWN
        end(connection, owned)


def connection_undone(connection: sqlite3.Connection, owned: Owned) -> None:
    """Roll it back, as a block does."""
    owned.take_back()
    connection.rollback()
    owned.free()


def test_a_commit_that_was_prepared_before_is_refused(file: Path) -> None:
    """sqlite3 keeps prepared statements, which SQLite does not ask about again."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for _ in range(2):
            for statement in ("BEGIN", INSERT, "COMMIT", "BEGIN"):
                connection.execute(statement)
            owned = lent(connection)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                connection.execute("COMMIT")
            assert owned.refused == "COMMIT"
            connection_undone(connection, owned)


def test_a_begin_that_could_not_be_done_may_be_done_again(file: Path) -> None:
    """Nothing was lost with it."""
    with (
        contextlib.closing(sqlite3.connect(file, timeout=0, isolation_level="IMMEDIATE")) as one,
        contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        owned = lent(one)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            one.execute(INSERT)
        other.execute("ROLLBACK")
        one.execute(INSERT)
        assert owned.state() is LentState.OPEN
        end(one, owned)
        assert other.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_a_connection_keeps_its_authorizer(connection: sqlite3.Connection) -> None:
    """Until it is given another one, and no other connection has it, whoever holds what."""
    owned = lent(connection)
    connection.execute(INSERT)
    end(connection, owned)
    connection.execute("CREATE TABLE free_again (n)")
    assert lent(connection) is owned
    connection.set_authorizer(None)
    assert kept(connection) is None
    connection.execute(INSERT)
    connection.commit()


def test_what_was_asked_for_a_connection_that_is_gone_is_not_kept(file: Path) -> None:
    """Another one may have its address, while a traceback holds what was its."""
    held = []
    for _ in range(50):
        connection = sqlite3.connect(file)
        assert kept(connection) is None
        held.append(keep(connection))
        connection.close()
        del connection
