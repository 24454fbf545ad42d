"""Databases that atomic methods name, and no longer name (DESIGN §6)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from rifl._stores import WrongDatabase
from tests.echo import METHOD, served
from tests.helpers.raw import RawClient

NO_MORE = "no atomic method names any more"


def _dedup(tmp_path: Path, named: str | None) -> rifl.Deduplicator:
    database = None if named is None else f"sqlite:///{tmp_path / named}"
    policy = rifl.MethodPolicy(kind=rifl.Kind.ATOMIC, database=database)
    return rifl.Deduplicator(f"sqlite:///{tmp_path / 'store.db'}", methods={METHOD: policy})


def _call(dedup: rifl.Deduplicator, path: Path) -> None:
    def handler(request: bytes, context: Any) -> bytes:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effects (name)")
            connection.execute("INSERT INTO effects VALUES ('x')")
            rifl.record(context, request, connection)
        return request

    # A client that does not release its lease when it goes.
    with served(dedup, handler) as target, RawClient(target) as client:
        assert client.call(METHOD, b"x", 1).ok


@pytest.mark.parametrize("now", ["other.db", None])
def test_a_database_that_is_named_no_more_is_missed(tmp_path: Path, now: str | None) -> None:
    """Records there would not be found, and a retry would run again: refused at start (§6)."""
    with _dedup(tmp_path, "books.db") as dedup:
        _call(dedup, tmp_path / "books.db")
    for _ in range(2):
        with pytest.raises(WrongDatabase, match=NO_MORE):
            _dedup(tmp_path, now)
    with _dedup(tmp_path, "books.db"):
        pass


def test_once_its_clients_are_over_another_may_be_named(tmp_path: Path) -> None:
    """Nobody is left whose retry could come: the next one is as good (DESIGN §5, §6)."""
    for named in ("books.db", "other.db", None, "books.db"):
        with _dedup(tmp_path, named):
            pass
