"""A client that is alive stays so, whatever the server's handlers do (DESIGN §5)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from tests.helpers.servers import generic
from tests.helpers.waiting import until

METHOD = "/p.S/Hang"
_TERM_S = 0.5


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_heartbeats_do_not_wait_for_a_pool_that_hangs(store: str, tmp_path: Path) -> None:
    """With every thread in a handler ids are granted and renewed, term after term (§5)."""
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path / 's.db'}"
    entered, release = threading.Event(), threading.Event()
    # The client counts its term by the machine's clock, and the server by one that is told.
    now_s = [0.0]

    def hang(request: bytes, _: Any) -> bytes:
        entered.set()
        release.wait(60)
        return request

    with rifl.Deduplicator(url, term_s=_TERM_S, clock=lambda: now_s[0]) as dedup:
        server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers((generic("p.S", {"Hang": hang}),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        authority: Any = dedup._authority
        with rifl.connect(f"127.0.0.1:{port}") as idle, rifl.connect(f"127.0.0.1:{port}") as busy:
            client_id = idle.session.open()
            call = busy.unary_unary(METHOD).future(b"x", timeout=60)
            assert entered.wait(60)
            leases: list[Any] = [each._client.session.lease for each in (idle, busy)]
            for _ in range(5):
                now_s[0] += 0.9 * _TERM_S
                since_s = time.monotonic()
                until(lambda: all(each.renewed_at > since_s for each in leases), "heartbeats")  # noqa: B023
                assert authority.expire() == []
            with rifl.connect(f"127.0.0.1:{port}") as late:
                assert late.session.open() not in (client_id, busy.session.client_id)
            release.set()
            assert call.result(60) == b"x"
            assert idle.session.client_id == client_id
        server.stop(0).wait()
