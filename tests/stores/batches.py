"""Batches over a store that replicas share, the same for each such store."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import rifl
from rifl import BatchItem, Outcome
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S

__all__ = ["METHOD", "opposite_orders_on_two_replicas"]

METHOD = "/t.Rows/Put"


def opposite_orders_on_two_replicas(url: str) -> None:
    """A sync and an aio replica, one session, batches in opposite orders: each row once."""
    effects: Counter[bytes] = Counter()
    # A transaction of 64 claims takes a while on a busy machine, and others wait for its lock.
    url = url.replace("dead_after_s=0.6", "dead_after_s=60") + "&timeout_s=60"

    def put(request: bytes, context: Any) -> bytes:
        effects[request] += 1
        return b"done " + request

    async def aput(request: bytes, context: Any) -> bytes:
        return put(request, context)

    with contextlib.ExitStack() as stack:
        channels = []
        for kind, handler in (("sync", put), ("aio", aput)):
            dedup = stack.enter_context(rifl.Deduplicator(url))
            handlers = [generic("t.Rows", {"Put": handler})]
            served = stack.enter_context(serve(kind, handlers, dedup=dedup))
            if served.loop is not None:
                # Its connections are the loop's, which ends first.
                stack.callback(served.loop.run, dedup.aclose())
            channels.append(stack.enter_context(rifl.connect(served.address, session="rows")))
        items = [BatchItem(b"%d" % at, b"k%d" % at) for at in range(120)]
        orders = (items, items[::-1], items[60:] + items[:60])
        under_way = [
            channels[number % 2].batch_future(METHOD, order, timeout=60)
            for number, order in enumerate(orders)
        ]
        executed = 0
        for order, future in zip(orders, under_way, strict=True):
            results = future.result(3 * DEADLINE_S)
            assert [r.response for r in results] == [b"done " + item.request for item in order]
            executed += sum(r.outcome is Outcome.EXECUTED for r in results)
        assert effects == {item.request: 1 for item in items}
        assert executed == len(items)
