"""A SQLite store that stopped for good keeps no server from stopping (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import rifl
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S


@pytest.mark.parametrize("declared", ["plain", "idempotent"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_what_a_stopped_store_owes_is_not_waited_for(
    tmp_path: Path, kind: str, declared: str
) -> None:
    """A handler that still runs is; its record, which nobody writes any more, is not."""
    entered, leave = threading.Event(), threading.Event()

    def hold(request: bytes, context: Any) -> bytes:
        if request == b"hold":
            entered.set()
            assert leave.wait(DEADLINE_S)
        return request

    async def ahold(request: bytes, context: Any) -> bytes:
        return await asyncio.to_thread(hold, request, context)

    handlers = [generic("test.Stopped", {"Act": ahold if kind == "aio" else hold})]
    url = f"sqlite:///{tmp_path}/s.db"
    with (
        rifl.Deduplicator(url, default=declared, drain_s=0) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        assert client.call("/test.Stopped/Act", b"first", 1).ok
        held = client.future("/test.Stopped/Act", b"hold", 2)
        assert entered.wait(DEADLINE_S)
        with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
            # As another incarnation does that took the file over: what it recovered stands.
            connection.execute("UPDATE rifl_meta SET value=value + 1 WHERE name='opening'")
        refused = client.call("/test.Stopped/Act", b"second", 3)
        assert refused.outcome in ("unknown", "not-executed")
        dedup.drain()
        assert dedup.drained(0) == 1
        leave.set()
        assert read(held).refusal == ("ABORTED", "RECORD_PENDING", "unknown")
        assert dedup.drained(0) == 0
