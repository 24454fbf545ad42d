"""A handler's thread that goes on after its event loop was ended, over stores that replicas share.

As a program it is the server: ``python -m tests.stores.left_thread URL KIND closing|ending``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import rifl
from rifl._stores import (
    Settled,
    Settlement,
    StoreLocked,
    UnknownState,
    settle_unknown,
    unknown_calls,
)
from rifl.core._serving.verdict import Verdict
from tests.helpers.processes import started
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic
from tests.helpers.waiting import until
from tests.stores.redis.replica import IDEMPOTENT, PLAIN, Replica, call

__all__ = ["check_left_thread"]

_METHOD = "/s/M"
_NOT_RUN = Settlement(False, "ops", "not in the ledger")


def check_left_thread(url: str, tmp_path: Path, declared: str, how: str) -> None:
    """While the thread may have its effect nobody else runs the call, nor may an operator."""
    policy = PLAIN if declared == "plain" else IDEMPOTENT
    arguments = (url, declared, how)
    with started(
        "tests.stores.left_thread", *arguments, log=tmp_path / "log", with_input=True
    ) as process:
        with RawClient(process.line()) as client:
            future = client.future(_METHOD, b"p", 1)
            assert process.line() == "begun"
            assert process.line() == "cancelled"
            future.cancel()
        arrival = call(client.client_id, 1, b"", attempt=2)
        other = Replica(url)
        try:
            found = other.store.claim(arrival, policy).wait()
            if declared == "plain":
                assert found.verdict is Verdict.COMPLETED
                assert [each.state for each in unknown_calls(url)] == [UnknownState.UNKNOWN]
            else:
                assert found.verdict is Verdict.IN_PROGRESS
            with pytest.raises(StoreLocked):
                settle_unknown(url, [arrival.rpc_id], _NOT_RUN)
            process.close_input()
            assert process.line() == "effect"
            process.wait()
            if declared == "plain":
                settled = settle_unknown(url, [arrival.rpc_id], _NOT_RUN)
                assert settled == {arrival.rpc_id: Settled.NOT_EXECUTED}

            def is_new() -> bool:
                decision = other.store.claim(arrival, policy).wait()
                return bool(decision.verdict is Verdict.NEW)

            until(is_new, "the call runs again")
        finally:
            other.close()


async def _serve(dedup: Any, how: str) -> None:
    begun, go_on = asyncio.Event(), threading.Event()

    def act(request: bytes) -> bytes:
        go_on.wait(60)
        print("effect", flush=True)
        return request

    async def threaded(request: bytes, context: Any) -> bytes:
        begun.set()
        return await asyncio.to_thread(act, request)

    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    server.add_generic_rpc_handlers((generic("s", {"M": threaded}),))
    dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), go_on.set()), daemon=True).start()
    await begun.wait()
    print("begun", flush=True)
    loop: Any = asyncio.get_running_loop()
    joining = loop.shutdown_default_executor

    def cancelled(*arguments: Any) -> Any:
        # What asyncio.run does when all tasks have ended that it cancelled.
        print("cancelled", flush=True)
        return joining(*arguments)

    loop.shutdown_default_executor = cancelled
    if how == "closing":
        await server.stop(0)
        await dedup.aclose(0)


def _main(url: str, declared: str, how: str) -> None:
    # The loop's end cancels the handler, and not rifl, as its caller has left: that would be sooner
    # if the server's end took its time.
    policy = rifl.MethodPolicy(kind=declared, cancel_unheard=False)  # type: ignore[arg-type]
    dedup = rifl.Deduplicator(url, default=policy)
    try:
        asyncio.run(_serve(dedup, how))
    finally:
        dedup.close(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
