"""The ceiling of a compiled module (benchmarks.ceiling)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import rifl
from benchmarks.ceiling import measure
from benchmarks.constant import WARM_UP_CALLS, constant_client, constant_server
from tests.test_hot_path import CALLS, METHOD, handlers, per_call, traced


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["sync", "aio"])
def test_all_sides_are_measured(flavor: str) -> None:
    """Each ratio is there, of calls that all were answered; what it is depends on the load."""
    ratios = measure(flavor, 1, 2, 0.05)
    assert len(ratios) == 12
    assert all(spread.low > 0 for spread in ratios.values())


def test_constant_rules_run_the_handler_without_deciding() -> None:
    """Every call reaches the handler; left of ours are 639 of 1,470 opcodes, the shells' (3.11)."""
    ran = []
    found = {}
    for constant in (False, True):
        with traced() as opcodes, rifl.Deduplicator("memory:") as dedup:
            if constant:
                constant_server(dedup._engine)
            server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])

            def behavior(request: bytes, _: object) -> bytes:
                ran.append(request)
                return request

            server.add_generic_rpc_handlers((handlers(behavior),))
            dedup.add_to_server(server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            with rifl.connect(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary(METHOD)
                for _ in range(WARM_UP_CALLS):
                    call(b"request", timeout=30)
                if constant:
                    constant_client(channel._client)
                opcodes.counting = True
                for _ in range(CALLS):
                    assert call(b"request", timeout=30) == b"request"
                opcodes.counting = False
            server.stop(0).wait()
        found[constant] = per_call(opcodes)
    assert len(ran) == 2 * (WARM_UP_CALLS + CALLS)
    assert found[True] < 0.7 * found[False], found
