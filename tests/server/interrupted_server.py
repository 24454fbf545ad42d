"""A server on an event loop that Ctrl-C ends: its handlers hang, or answer, as they are told.

``python -m tests.server.interrupted_server URL ADDRESS KIND hang|interrupt|answer``
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import grpc
import grpc.aio

import rifl
from tests.helpers.servers import generic

_URL, _ADDRESS, _KIND, _MODE = sys.argv[1:] if __name__ == "__main__" else [""] * 4


async def act(request: bytes, context: Any) -> bytes:
    """Say that it runs, and hang or answer; the first call is answered always."""
    if request == b"first":
        return b"done"
    print("runs", flush=True)
    if _MODE == "hang":
        await asyncio.Event().wait()
    elif _MODE == "interrupt":
        # Where the loop's own handling of Ctrl-C is not, it is raised in whatever runs.
        signal.raise_signal(signal.SIGINT)
    return b"done"


def wake() -> None:
    """Keep the loop from waiting for long.

    ``asyncio.run`` sets no descriptor that a signal wakes: one that comes just before the loop
    waits is handled at its next event.
    """
    asyncio.get_running_loop().call_later(0.05, wake)


async def main() -> None:
    """Serve until interrupted."""
    wake()
    # Not closed: what Ctrl-C cancels has its store until the process ends.
    dedup = rifl.Deduplicator(_URL, default=_KIND)
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    server.add_generic_rpc_handlers((generic("test.Cut", {"Act": act}),))
    dedup.add_to_server(server)
    server.add_insecure_port(_ADDRESS)
    await server.start()
    print("serves", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    # Ignored where whoever started the tests has put them into the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _MODE == "interrupt":
        asyncio.new_event_loop().run_until_complete(main())
    else:
        asyncio.run(main())
