"""A signal's handler that asks a server, at any line of a call on the loop of its own thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
import rifl.aio
from tests.helpers.at_a_line import OURS, at_a_line, bounded

_SERVER = ("/rifl/_server/", "/rifl/_stores/", "/rifl/core/_serving/", "/lease_server/")


def _of_the_server(file: str, _: str) -> bool:
    return any(part in file for part in _SERVER)


async def _walk(url: str, step: int) -> int:
    effects: list[bytes] = []

    async def act(request: bytes, context: Any) -> bytes:
        effects.append(request)
        return b"done"

    dedup = rifl.Deduplicator(url)
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    handlers = {"Act": grpc.unary_unary_rpc_method_handler(act)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.Signals", handlers)])
    dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def handler() -> None:
        dedup.statistics()
        dedup.drain()
        # As ``drain``, the other way round: the next call is taken.
        dedup._store.refuse_new(False)

    async with rifl.aio.connect(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/t.Signals/Act")
        await call(b"first", timeout=20)
        number, line = 1, None
        while line is None or line.came:
            with at_a_line(number, handler, _of_the_server, OURS) as line:
                assert await call(b"%d" % number, timeout=20) == b"done", line
            number += step
        assert effects[1:] == [b"%d" % each for each in range(1, number, step)]
    await server.stop(None)
    await dedup.aclose()
    return number


@pytest.mark.parametrize(
    ("engine", "step"),
    [
        ("memory", 1),
        ("sqlite", 7),
        pytest.param("sqlite", 1, marks=pytest.mark.long),
    ],
)
def test_a_signals_handler_asks_and_drains(tmp_path: Path, engine: str, step: int) -> None:
    """It gets its answer, and the call goes on (DESIGN §9)."""
    url = "memory:" if engine == "memory" else f"sqlite:///{tmp_path}/s.db"
    assert bounded(lambda: asyncio.run(_walk(url, step)), 60) > 50
