"""A deduplicator belongs to the process that made it (DESIGN §5)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        redis_server = RedisServer(tmp_path)
        yield redis_server.url()
        redis_server.stop()
    elif request.param == "postgres":
        postgres_server = PostgresServer()
        yield postgres_server.url()
        postgres_server.stop()
    else:
        yield "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"


def test_a_deduplicator_made_before_a_fork_is_refused_in_the_child(
    url: str, tmp_path: Path
) -> None:
    """Every use and every call is ForkedProcess there; made again it works (DESIGN §5).

    Half of the parent's calls had come too late: its bound of handlers that run is its own (§4).
    """
    effects = tmp_path / "effects"
    forked = subprocess.run(
        [sys.executable, "-m", "tests.server.forking", url, str(effects)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = forked.stdout.splitlines()
    refused = [
        f"{kind}: 15 of 15 refused, call FORKED_PROCESS" for kind in ("sync", "aio", "threads")
    ]
    assert lines[:3] == refused, forked.stderr
    # SQLite's file is the parent's alone; shared stores answer the parent from the child's
    # record; what is in memory is each process's own.
    if url.startswith("sqlite"):
        assert "was open in the parent process" in lines[3]
    else:
        assert lines[3] == "again: paid 1", forked.stderr
    # A standing answer needs no handler; in memory, and over SQLite, the call is new.
    stands = not url.startswith(("memory", "sqlite"))
    first = "parent: paid 1" if stands else "parent: OVERLOADED"
    assert lines[4:] == [first, "parent: paid 1"], forked.stderr
    assert effects.read_text() == ("1\n1\n" if url == "memory:" else "1\n")
