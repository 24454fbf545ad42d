"""Closing while handlers run, for each store that outlives its process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

import rifl
from rifl._stores import Settlement, StoreLocked, settle_unknown
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, until

__all__ = ["HELD", "Holding", "KeptUntilTheLastHandler", "open_dedup"]

HELD = "/test.Stopping/Hold"
NOT_RUN = Settlement(False, "ops", "its process seems to be gone")


class Holding:
    """A server whose handler waits before its effect until it is let on."""

    def __init__(self, dedup: rifl.Deduplicator, kind: str, runs: Counter[bytes]) -> None:
        self.dedup = dedup
        self.entered, self.go_on = threading.Event(), threading.Event()

        def hold(request: bytes, context: Any) -> bytes:
            self.entered.set()
            assert self.go_on.wait(DEADLINE_S)
            runs[request] += 1
            return b"%d" % runs[request]

        async def ahold(request: bytes, context: Any) -> bytes:
            return await asyncio.to_thread(hold, request, context)

        handlers = [generic("test.Stopping", {"Hold": ahold if kind == "aio" else hold})]
        self._serving = serve(kind, handlers, dedup=dedup)
        self.address = self._serving.__enter__().address

    def close(self) -> None:
        """Let the handler on, and stop."""
        self.go_on.set()
        self._serving.__exit__(None, None, None)
        self.dedup.close(DEADLINE_S)


def open_dedup(url: str, declared: str, **more: Any) -> rifl.Deduplicator:
    """Open a server's deduplicator, with no patience."""
    return rifl.Deduplicator(
        url,
        default=declared,
        drain_s=0,
        lock_timeout_s=0.05,
        bounds=rifl.Bounds(max_wait_s=0.1),
        **more,
    )


def _owner(url: str) -> str | None:
    with closing(open_inspection(url)) as store:
        return store.summary().owner


class KeptUntilTheLastHandler:
    """``url`` is the fixture of a store of its own."""

    @pytest.mark.parametrize("declared", ["plain", "idempotent"])
    @pytest.mark.parametrize("kind", ["sync", "aio"])
    def test_nobody_takes_the_store_over_while_a_handler_runs(
        self, url: str, kind: str, declared: str
    ) -> None:
        """After ``close`` too: its effect comes once, and its answer is recorded (DESIGN §6)."""
        runs: Counter[bytes] = Counter()
        with closing(Holding(open_dedup(url, declared), kind, runs)) as first:
            with RawClient(first.address) as client:
                running = client.future(HELD, b"x", 1)
                assert first.entered.wait(DEADLINE_S)
                first.dedup.close()
                first.dedup.close()
                rpc_id = RpcId(client.client_id, 1)
                if declared == "plain" or not url.startswith("sqlite"):
                    with pytest.raises(StoreLocked):
                        settle_unknown(url, [rpc_id], NOT_RUN)
                    with closing(open_inspection(url)) as store, pytest.raises(StoreLocked):
                        store.release(rpc_id)
                assert _owner(url) is not None
                self.cannot_run_elsewhere(url, declared, client, runs)
                first.go_on.set()
                assert read(running).response == b"1"
                identity = client.client_id, client.token
            first.dedup.close(DEADLINE_S)
            assert _owner(url) is None
        with (
            closing(Holding(open_dedup(url, declared), "sync", runs)) as second,
            RawClient(second.address, grant=False) as client,
        ):
            client.client_id, client.token = identity
            again = client.call(HELD, b"x", 1, attempt=2)
            assert (again.response, again.outcome) == (b"1", "replayed")
        assert runs == {b"x": 1}

    def cannot_run_elsewhere(
        self, url: str, declared: str, client: RawClient, runs: Counter[bytes]
    ) -> None:
        """Send the call to another replica: it waits for this one's, once."""
        with (
            closing(Holding(open_dedup(url, declared), "sync", Counter())) as other,
            RawClient(other.address, grant=False) as again,
        ):
            other.go_on.set()
            again.client_id, again.token = client.client_id, client.token
            refused = again.call(HELD, b"x", 1, attempt=2)
            assert refused.refusal == ("ABORTED", "IN_PROGRESS", "unknown")
            assert refused.details.endswith("is still running")
        assert not runs

    def test_a_handler_may_close_its_own_server(self, url: str) -> None:
        """Its store is let go after it has answered (DESIGN §6)."""
        made: list[rifl.Deduplicator] = []

        def closes(request: bytes, context: Any) -> bytes:
            made[0].close(0.05)
            made[0].close(0.05)
            return b"closed"

        made.append(open_dedup(url, "plain"))
        with (
            serve("sync", [generic("test.Stopping", {"Hold": closes})], dedup=made[0]) as served,
            RawClient(served.address) as client,
        ):
            assert client.call(HELD, b"x", 1).response == b"closed"
        until(lambda: _owner(url) is None, "the store is let go")
