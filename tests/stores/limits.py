"""Connections of a shared store, when all are taken; and the count of its clients."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import rifl
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from rifl.metrics import PrometheusObserver
from tests.echo import METHOD, aio_served, served
from tests.helpers.raw import RawClient
from tests.helpers.waiting import until
from tests.stores.redis.replica import FIRST, IDEMPOTENT, call

__all__ = ["Limits"]

_WAIT_S = 0.4
# More than any wait of so long takes on a busy machine.
_ROOM_S = 10.0
_REFUSED = ("UNAVAILABLE", "STORE_UNAVAILABLE", "not-executed")


class Limits:
    """Over a store with few connections; the subclass says how they are had."""

    def taken(self, store: Any) -> ExitStack:
        """Take all connections that threads may have; closing gives them back."""
        raise NotImplementedError

    async def taken_awaiting(self, store: Any) -> AsyncExitStack:
        """Take those of the running loop."""
        raise NotImplementedError

    @pytest.fixture
    def narrow(self, url):
        """Return the URL of the store with few connections; its replicas die slowly."""
        return f"{url}&max_connections=3&dead_after_s=60&timeout_s={_WAIT_S}"

    def test_without_a_connection_nothing_has_run(self, replicas, narrow):
        """A new call waits so long, then STORE_UNAVAILABLE; what ran is recorded later (§3)."""
        one = replicas(narrow)
        client = one.client()
        running = one.begin(call(client, 1), IDEMPOTENT)
        with self.taken(one.store):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                one.claim(call(client, 2), IDEMPOTENT)
            assert _WAIT_S * 0.9 <= time.monotonic() - began < _ROOM_S
            with pytest.raises(RecordPending):
                one.finish(running)
        until(lambda: not one.store.running(), "what ran is recorded, what did not is free")
        assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
        assert one.claim(call(client, 2), IDEMPOTENT).verdict is Verdict.NEW

    def test_a_connection_that_comes_back_is_waited_for(self, replicas, narrow):
        """Of a burst of more calls than connections none is refused (DESIGN §9, bounds)."""
        one = replicas(narrow.replace(f"timeout_s={_WAIT_S}", "timeout_s=20"))
        client = one.client()
        found: list[Verdict] = []

        def claim(seq: int) -> None:
            found.append(one.claim(call(client, seq), IDEMPOTENT).verdict)

        threads = [threading.Thread(target=claim, args=(seq,)) for seq in range(1, 8)]
        with self.taken(one.store):
            for thread in threads:
                thread.start()
            assert not found
        for thread in threads:
            thread.join(_ROOM_S)
        assert found == [Verdict.NEW] * 7

    def test_callers_are_told_that_nothing_was_executed(self, narrow):
        """UNAVAILABLE, and the handler saw nothing; the same call runs later (DESIGN §3)."""
        seen: list[bytes] = []

        def handler(request: bytes, context: Any) -> bytes:
            seen.append(request)
            return request

        with (
            rifl.Deduplicator(narrow) as dedup,
            served(dedup, handler) as target,
            RawClient(target) as client,
        ):
            with self.taken(dedup._store):
                assert client.call(METHOD, b"p", 1).refusal == _REFUSED
                assert seen == []
            answers = (client.call(METHOD, b"p", 1, attempt=2) for _ in range(1000))
            assert next(answer for answer in answers if answer.ok).response == b"p"
        assert seen == [b"p"]

    async def test_the_same_on_an_event_loop(self, narrow):
        """A loop's own connections are bounded alike, and so is the wait (DESIGN §3)."""
        seen: list[bytes] = []

        async def handler(request: bytes, context: Any) -> bytes:
            seen.append(request)
            return request

        async with rifl.Deduplicator(narrow) as dedup, aio_served(dedup, handler) as target:
            client = await asyncio.to_thread(RawClient, target)
            with client:
                async with await self.taken_awaiting(dedup._store):
                    refused = await asyncio.to_thread(client.call, METHOD, b"p", 1)
                    assert refused.refusal == _REFUSED
                    assert seen == []
                answer = refused
                while not answer.ok:
                    answer = await asyncio.to_thread(client.call, METHOD, b"p", 1, attempt=2)
        assert seen == [b"p"]

    def test_clients_are_counted_for_the_whole_store(self, url):
        """Each replica's gauge is of all clients and sessions, wherever they came from (§9)."""
        registries = [CollectorRegistry(), CollectorRegistry()]
        with ExitStack() as stack:
            targets = []
            for registry in registries:
                observer = PrometheusObserver(registry)
                dedup = stack.enter_context(rifl.Deduplicator(url, observer=observer))
                targets.append(stack.enter_context(served(dedup)))
            clients = [stack.enter_context(RawClient(target)) for target in targets * 2]
            for client in clients:
                assert client.call(METHOD, b"p", 1).ok
            with RawClient(targets[0], grant=False) as session:
                session.open_session("s")
            for name in ("rifl_server_clients", "rifl_server_leases"):
                for registry in registries:
                    until(
                        lambda name=name, of=registry: of.get_sample_value(name) == 5,
                        "all are counted",
                    )
