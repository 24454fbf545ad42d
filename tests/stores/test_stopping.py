"""Closing with handlers running, over SQLite (DESIGN §6)."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from rifl._stores import StoreLocked
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.stopping import HELD, Holding, KeptUntilTheLastHandler, open_dedup


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file of its own."""
    return f"sqlite:///{tmp_path / 's.db'}"


class TestSqlite(KeptUntilTheLastHandler):
    """See there."""

    def cannot_run_elsewhere(
        self, url: str, declared: str, client: RawClient, runs: Counter[bytes]
    ) -> None:
        """Nobody else can open the file."""
        with pytest.raises(StoreLocked):
            open_dedup(url, declared)
        assert not runs

    def test_a_late_handler_commits_its_record(
        self, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An atomic one that ends after ``close``; the file is still the store's (DESIGN §6)."""
        entered, go_on = threading.Event(), threading.Event()
        with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
            connection.execute("CREATE TABLE effects (of TEXT)")

        def pay(request: bytes, context: Any) -> bytes:
            entered.set()
            assert go_on.wait(DEADLINE_S)
            with closing(sqlite3.connect(tmp_path / "s.db", timeout=DEADLINE_S)) as db, db:
                db.execute("INSERT INTO effects VALUES ('x')")
                rifl.record(context, b"paid", db)
            return b"paid"

        dedup = open_dedup(url, "atomic")
        with (
            caplog.at_level(logging.INFO, "rifl"),
            serve("sync", [generic("test.Stopping", {"Hold": pay})], dedup=dedup) as served,
            RawClient(served.address) as client,
        ):
            running = client.future(HELD, b"x", 1)
            assert entered.wait(DEADLINE_S)
            dedup.close()
            with pytest.raises(StoreLocked):
                open_dedup(url, "atomic")
            go_on.set()
            assert read(running).response == b"paid"
            dedup.close(DEADLINE_S)
            identity = client.client_id, client.token
        with (
            closing(Holding(open_dedup(url, "atomic"), "sync", Counter())) as second,
            RawClient(second.address, grant=False) as client,
        ):
            client.client_id, client.token = identity
            assert client.call(HELD, b"x", 1, attempt=2).response == b"paid"
        with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
            assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)
        assert "store_stopped" not in caplog.text

    def test_two_servers_of_one_process_stop_by_themselves(self, url: str, tmp_path: Path) -> None:
        """One's handlers do not hold the other's store (DESIGN §6)."""
        other_url = f"sqlite:///{tmp_path / 'other.db'}"
        with (
            closing(Holding(open_dedup(url, "plain"), "sync", Counter())) as held,
            closing(Holding(open_dedup(other_url, "plain"), "sync", Counter())) as other,
            RawClient(held.address) as client,
        ):
            running = client.future(HELD, b"x", 1)
            assert held.entered.wait(DEADLINE_S)
            held.dedup.close()
            other.dedup.close()
            open_dedup(other_url, "plain").close()
            with pytest.raises(StoreLocked):
                open_dedup(url, "plain")
            held.go_on.set()
            assert read(running).response == b"1"
        until(lambda: held.dedup._release.done, "it is let go")  # type: ignore[union-attr]
