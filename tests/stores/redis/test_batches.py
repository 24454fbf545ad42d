"""Batched calls over Redis: many scripts a round trip (DESIGN §4, §6)."""

from __future__ import annotations

import rifl
from rifl import BatchItem
from rifl._stores.shared.requests import Beat
from tests.helpers.servers import generic, serve
from tests.stores.batches import METHOD, opposite_orders_on_two_replicas


def test_two_replicas_take_batches_in_opposite_order(url):
    """Each row happens once, on one of them, and nobody waits in a ring (DESIGN §4)."""
    opposite_orders_on_two_replicas(url)


def test_a_batch_takes_two_round_trips(url):
    """Its claims are one pipeline, its records another, and no script is asked alone (§4)."""
    asked = []
    with (
        rifl.Deduplicator(url) as dedup,
        serve("sync", [generic("t.Rows", {"Put": lambda r, c: r})], dedup=dedup) as served,
        rifl.connect(served.address, session="rows") as channel,
    ):
        backend = dedup._store._backend
        single, together = backend.ask, backend.ask_all

        def ask(request):
            if not isinstance(request, Beat):
                asked.append(request)
            return single(request)

        backend.ask = ask
        backend.ask_all = lambda requests: asked.append(len(requests)) or together(requests)
        items = [BatchItem(b"%d" % at, b"k%d" % at) for at in range(200)]
        assert all(result.ok for result in channel.batch(METHOD, items, timeout=20))
        del backend.ask
        assert asked == [200, 200]


def test_scripts_that_redis_forgot_are_sent_again(url):
    """A restart or SCRIPT FLUSH in between costs a round trip, and no row (DESIGN §6)."""
    with (
        rifl.Deduplicator(url) as dedup,
        serve("sync", [generic("t.Rows", {"Put": lambda r, c: r})], dedup=dedup) as served,
        rifl.connect(served.address, session="rows") as channel,
    ):
        for turn in range(2):
            dedup._store._backend.clients.blocking.script_flush()
            items = [BatchItem(b"r", b"%d-%d" % (turn, at)) for at in range(50)]
            assert all(result.ok for result in channel.batch(METHOD, items, timeout=20))
