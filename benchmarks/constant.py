"""Rules that always answer the same: what they would cost if they cost nothing.

For ``benchmarks.ceiling``. After a few calls that were decided as always, a client issues the
last one again and again, under headers that were made before, and a server reads every header
as that call, and takes every call for new. All else is as it was: so what is left out is what
a compiled module could do without Python, and no more could be gained by one.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

__all__ = ["WARM_UP_CALLS", "constant_client", "constant_server"]

# The server reads the first header the long way, and keeps the second call.
WARM_UP_CALLS = 4
# More than HPACK remembers: gRPC sends a value it saw before as an index.
_HEADERS = 4096
_SEED_BYTES = 8


def constant_client(client: Any) -> None:
    """Have a client (``SyncClient``, ``AioClient``) issue one call again and again.

    To be called after ``WARM_UP_CALLS`` calls. Left out are the tracker and the header.
    """
    session = client.session
    issued = session.try_begin(client.stamp(), client.now())
    if issued is None:
        raise RuntimeError("there is no lease, or no room")
    key, value = client.header(issued)
    # As long as always, and each another one.
    headers = itertools.cycle(
        [(key, value[:-_SEED_BYTES] + os.urandom(_SEED_BYTES)) for _ in range(_HEADERS)]
    )
    session.try_begin = lambda stamp, now: issued
    session.complete = lambda call, sent_at=None: None
    client.header = lambda call: next(headers)


def constant_server(engine: Any) -> None:
    """Have a server (an ``Engine`` over ``memory:``) take every call for one that is new.

    Left out are the header with the fingerprint, the decision, and its settling.
    """
    known, store = engine._known, engine.store
    read, claim, finish = known.read, store.claim, store.finish
    kept: list[Any] = []

    def first_read(*header: Any) -> Any:
        call = read(*header)
        if call is not None:
            kept.append(call)
            known.read = lambda value, method, request, secrets: call
        return call

    def first_claim(call: Any, policy: Any) -> Any:
        decision = claim(call, policy)
        if kept:
            store.claim = lambda call, policy: decision
        return decision

    def first_finish(attempt: Any, record: Any) -> Any:
        found = finish(attempt, record)
        if kept:
            store.finish = lambda attempt, record: None
        return found

    known.read, store.claim, store.finish = first_read, first_claim, first_finish
