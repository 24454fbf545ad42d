"""Forks with a deduplicator made: ``python -m tests.server.forking URL EFFECTS``.

In a process of its own, in which gRPC runs nothing before the forks, as in gunicorn's
master. Prints a line for each child, and one for the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

import rifl
from rifl._stores import StoreLocked
from rifl._wire.labels import read_refusal
from rifl.core._shared.errors import ForkedProcess
from rifl.core._shared.errors import ForkedProcess as ForkedLeases
from tests.helpers.servers import generic, serve

METHOD = "/p.S/Pay"


def handlers(effects: Path, kind: str) -> list[Any]:
    def pay(request: bytes, _: Any) -> bytes:
        with effects.open("a") as file:
            file.write(f"{request.decode()}\n")
        return b"paid " + request

    async def pay_async(request: bytes, context: Any) -> bytes:
        return pay(request, context)

    return [generic("p.S", {"Pay": pay_async if kind == "aio" else pay})]


def called(address: str) -> str:
    """Call by a key, as a caller of any language does."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)
        try:
            return call(b"1", timeout=20, metadata=(("idempotency-key", "order-1"),)).decode()
        except grpc.RpcError as error:
            refusal = read_refusal(error.trailing_metadata())  # type: ignore[attr-defined]
            return str(error) if refusal is None else refusal[0]


def refused(uses: list[Callable[[], Any]]) -> str:
    count = 0
    for use in uses:
        try:
            use()
        except (ForkedProcess, ForkedLeases) as error:
            # The remedy is in the message.
            count += "post_fork" in str(error)
    return f"{count} of {len(uses)} refused"


def inherited(dedup: Any, kind: str, interceptor: Any, effects: Path) -> str:
    server = grpc.server(None)
    store, leases = dedup._store, dedup._authority
    uses: list[Callable[[], Any]] = [
        dedup.interceptor,
        dedup.aio_interceptor,
        lambda: dedup.add_to_server(server),
        lambda: dedup.add_health(server),
        dedup.rotate_secret,
        dedup.statistics,
        dedup.check,
        dedup.drain,
        lambda: dedup.drained(0),
        store.running,
        lambda: store.clients_ended([1]),
        lambda: store.leases.reserve_ids(1),
        leases.grant,
        leases.expire,
        lambda: leases.open_session("s"),
    ]
    counted = refused(uses)
    # As at the end of a ``with`` that the child leaves, too.
    dedup.close()
    asyncio.run(dedup.aclose())
    with serve(kind, handlers(effects, kind), interceptors=[interceptor]) as served:
        return f"{kind}: {counted}, call {called(served.address)}"


def made_again(url: str, effects: Path) -> str:
    try:
        dedup = rifl.Deduplicator(url, keys_from="anyone", lock_timeout_s=0.1)
    except StoreLocked as error:
        return f"again: {error}"
    with dedup, serve("aio", handlers(effects, "aio"), dedup=dedup) as served:
        return f"again: {called(served.address)}"


def refusing(dedup: Any) -> Any:
    """Have half of a method's calls have come too late, while four run, as if they did.

    Returns the runs of its coroutine handlers, whose bound it now is.
    """
    runs = dedup._engine.unheard.of(METHOD, rifl.MethodPolicy())
    for _ in range(32):
        runs.bound.too_late(600.0, time.monotonic())
    for _ in range(4):
        assert runs.bound.begin(600.0, time.monotonic())
    return runs


def in_child(work: Callable[[], str], locks: list[Any]) -> None:
    with contextlib.ExitStack() as held:
        for lock in locks:
            # Held by another thread at the fork: the child must not wait for it.
            held.enter_context(lock)
        child = os.fork()
        if child == 0:
            print(work(), flush=True)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main(url: str, effects: Path) -> None:
    with rifl.Deduplicator(url, keys_from="anyone") as dedup:
        made: Any = dedup
        found = [made._closing, *vars(made._store).values(), *vars(made._authority).values()]
        locks = [each for each in found if type(each) is type(made._closing)]
        runs = refusing(made)
        locks += [made._engine.unheard._lock, runs.lock]
        interceptor, aio = dedup.interceptor(), dedup.aio_interceptor()
        in_child(lambda: inherited(dedup, "sync", interceptor, effects), locks)
        in_child(lambda: inherited(dedup, "aio", aio, effects), locks)
        in_child(lambda: inherited(dedup, "threads", aio, effects), locks)
        in_child(lambda: made_again(url, effects), [])
        with serve("aio", handlers(effects, "aio"), dedup=dedup) as served:
            print(f"parent: {called(served.address)}", flush=True)
            for _ in range(4):
                runs.bound.end(time.monotonic())
            print(f"parent: {called(served.address)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
