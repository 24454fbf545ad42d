"""A target's process is killed in the middle of a handler: what is left (DESIGN-LOG §15, P1)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import Process
from tests.sharedlog.target.player import A, Player, player, row, told
from tests.sharedlog.target.shop import ATOMIC, IDEMPOTENT, PLAIN

pytestmark = pytest.mark.faults

MODULE = "tests.sharedlog.target.process"


@contextlib.contextmanager
def target(
    url: str, effects: Path, hanging: int = 0, *more: str
) -> Iterator[tuple[Process, Player]]:
    """A target's process, and a player before it; both gone afterwards."""
    arguments = (url, str(effects), str(hanging), *more)
    process = Process(MODULE, *arguments, log=effects.with_suffix(".log"))
    try:
        address = process.line()
        with player(address) as found:
            yield process, found
    finally:
        process.kill()


def killed_at(url: str, effects: Path, method: str, hanging: int, *more: str) -> None:
    """Deliver messages up to one whose handler does not come to its end, and kill."""
    with target(url, effects, hanging, *more) as (process, found):
        assert not found.index().HasField("at")
        stream = found.stream()
        stream.send(*row(1, hanging + 1, method))
        assert process.line() == f"running {hanging}"
        process.kill()
        stream.cut()


def check_atomic(url: str, effects: Path, done: Any, *more: str) -> None:
    """Each message has its effect once, whatever was under way."""
    killed_at(url, effects, ATOMIC, 3, *more)
    # Those before it may have been in the same transaction.
    left = done()
    assert left == [1, 2][: len(left)]
    with target(url, effects, 0, *more) as (_, found):
        index = found.index()
        reached = index.at.lsn if index.HasField("at") else 0
        assert (reached, index.taken, index.HasField("begun")) == (len(left), len(left), False)
        assert told(found.batch(*row(1, 5, ATOMIC)))[-1] == ("DONE", 5)
    assert done() == [1, 2, 3, 4, 5]


def test_an_atomic_handler_that_is_killed_did_nothing(tmp_path: Path) -> None:
    """SQLite: effect and index are one commit, or none (P1)."""

    def done() -> list[int]:
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            return [lsn for (lsn,) in connection.execute("SELECT lsn FROM effect ORDER BY rowid")]

    check_atomic(f"sqlite:///{tmp_path}/store.db", tmp_path / "effects", done)


@pytest.mark.parametrize("more", [(), ("own",)], ids=["shared", "own"])
def test_an_atomic_handler_over_postgresql_that_is_killed_did_nothing(
    tmp_path: Path, shared_postgres: Any, name: str, more: tuple[str, ...]
) -> None:
    """PostgreSQL: effect and index are one commit, or none, shared by others or not (P1)."""
    with shared_postgres.connect() as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS target_effect (name text, at serial, lsn int)"
        )

    def done() -> list[int]:
        with shared_postgres.connect() as connection:
            found = connection.execute(
                "SELECT lsn FROM target_effect WHERE name = %s ORDER BY at", (name,)
            )
            return [lsn for (lsn,) in found.fetchall()]

    check_atomic(shared_postgres.url(schema=name), tmp_path / name, done, *more)


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> str:
    """Where each store is."""
    if request.param == "redis":
        return str(request.getfixturevalue("shared_redis").url(namespace=name))
    if request.param == "postgres":
        return str(request.getfixturevalue("shared_postgres").url(schema=name))
    return f"sqlite:///{tmp_path}/store.db"


def test_an_idempotent_handler_that_is_killed_runs_again(url: str, tmp_path: Path) -> None:
    """The index is where it was: the message, and what came with it, comes again (P1)."""
    effects = tmp_path / "effects"
    killed_at(url, effects, IDEMPOTENT, 3)
    with target(url, effects) as (_, found):
        assert not found.index().HasField("begun")
        assert told(found.batch(*row(1, 4, IDEMPOTENT)))[-1] == ("DONE", 4)
    done = [int(line) for line in effects.read_text().split()]
    assert done[:3] == [1, 2, 3]
    assert done[-2:] == [3, 4]


def test_a_plain_handler_that_is_killed_is_unknown(url: str, tmp_path: Path) -> None:
    """It may have had its effect: the target stops, and says so, until somebody decides (P7)."""
    effects = tmp_path / "effects"
    killed_at(url, effects, PLAIN, 3)
    with target(url, effects) as (_, found):
        index = found.index()
        assert (index.at.lsn, index.begun.lsn) == (2, 3)
        (answer,) = found.batch(*row(3, 4, PLAIN))
        assert (answer.kind, answer.index.begun.lsn) == (A.UNKNOWN, 3)
        deliveries = row(3, 4, PLAIN)
        deliveries[0].again = True
        assert told(found.batch(*deliveries))[-1] == ("DONE", 4)
    assert effects.read_text().split() == ["1", "2", "3", "3", "4"]
