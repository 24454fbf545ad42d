"""Batched calls over Redis: many scripts a round trip (DESIGN §4, §6)."""

from __future__ import annotations

from collections import Counter

import rifl
from rifl import BatchItem
from rifl._stores.shared.requests import Abandon, Claim, Finish, Look, TakeBack
from tests.helpers.servers import generic, serve
from tests.stores.batches import METHOD, opposite_orders_on_two_replicas

OF_CALLS = (Abandon, Claim, Finish, Look, TakeBack)


def test_two_replicas_take_batches_in_opposite_order(url):
    """Each row happens once, on one of them, and nobody waits in a ring (DESIGN §4)."""
    opposite_orders_on_two_replicas(url)


def test_a_batch_takes_two_round_trips(shared_server):
    """Its claims are one pipeline, its records another, and no script is asked alone (§4)."""
    # Nobody takes it for dead however slow the machine is: no claim's reply is late, and doubted.
    url = shared_server.url(namespace="round-trips", dead_after_s=600)
    asked = []
    with (
        rifl.Deduplicator(url) as dedup,
        serve("sync", [generic("t.Rows", {"Put": lambda r, c: r})], dedup=dedup) as served,
        rifl.connect(served.address, session="rows") as channel,
    ):
        backend = dedup._store._backend
        single, together = backend.ask, backend.ask_all

        def ask(request, *within_s):
            # Of the batch, and not what the replica asks for itself.
            if isinstance(request, OF_CALLS):
                asked.append(request)
            return single(request, *within_s)

        def ask_all(requests, *within_s):
            asked.append(Counter(map(type, requests)))
            return together(requests, *within_s)

        backend.ask, backend.ask_all = ask, ask_all
        items = [BatchItem(b"%d" % at, b"k%d" % at) for at in range(200)]
        assert all(result.ok for result in channel.batch(METHOD, items, timeout=60))
        assert asked == [{Claim: 200}, {Finish: 200}]


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
