"""A client that is alive stays so, whatever the server's handlers do (DESIGN §5)."""

from __future__ import annotations

import threading
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

    def hang(request: bytes, _: Any) -> bytes:
        entered.set()
        release.wait(60)
        return request

    with rifl.Deduplicator(url, term_s=_TERM_S) as dedup:
        server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers((generic("p.S", {"Hang": hang}),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        authority: Any = dedup._authority
        with rifl.connect(f"127.0.0.1:{port}") as idle, rifl.connect(f"127.0.0.1:{port}") as busy:
            client_id = idle.session.open(10)
            call = busy.unary_unary(METHOD).future(b"x", timeout=60)
            assert entered.wait(60)
            lease: Any = idle._client.session.lease
            end = lease.expires_at + 3 * _TERM_S
            until(lambda: lease.expires_at >= end, "heartbeats for three terms")
            assert authority.alive(client_id)
            assert authority.alive(busy.session.client_id)
            with rifl.connect(f"127.0.0.1:{port}") as late:
                assert late.session.open(10) not in (client_id, busy.session.client_id)
            release.set()
            assert call.result(60) == b"x"
            assert idle.session.client_id == client_id
        server.stop(0).wait()
