"""A replica that is asked to stop while its log engine is gone (DESIGN §7, invariant 5)."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

import rifl
from curp.client import statistics
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_LONG = pytest.mark.long


def _end(server: Any, how: str) -> None:
    nodes = getattr(server, "nodes", None) or [server]
    for node in nodes:
        if how == "suspend":
            node.suspend()
        elif hasattr(node, "kill"):
            node.kill()
        else:
            node.stop()


def _begin_again(server: Any, how: str) -> None:
    if hasattr(server, "heal"):
        server.heal()
    elif how == "suspend":
        server.resume()
    else:
        server.start()


@pytest.mark.parametrize(
    ("engine", "how"),
    [
        ("etcd", "kill"),
        pytest.param("etcd", "suspend", marks=_LONG),
        pytest.param("redis", "kill", marks=_LONG),
        pytest.param("redis", "suspend", marks=_LONG),
        pytest.param("postgres", "kill", marks=_LONG),
    ],
)
def test_a_leader_whose_engine_is_gone_stops_in_time_and_says_why(
    tmp_path: Path, request: pytest.FixtureRequest, group: str, engine: str, how: str
) -> None:
    """Within five seconds that it waits for the engine; the next leader asks the witness (5)."""
    server = request.getfixturevalue(f"own_{engine}")
    with operated(tmp_path, server.url(group=group), "--log-json") as bank:
        bank.start("w1", "r1")
        bank.until_listed()
        bank.deposit("a")
        _end(server, how)
        try:
            with rifl.connect(bank.replicas["r1"]) as channel:
                stub = bank_pb2_grpc.BankStub(channel)
                waiting = [
                    stub.Deposit.future(
                        bank_pb2.DepositRequest(reference=f"b{at}", account=f"b{at}", cents=1),
                        timeout=DEADLINE_S,
                    )
                    for at in range(4)
                ]
                until(lambda: bank.status("r1").get("engine"), "it misses the engine")
                began = time.monotonic()
                assert bank.stop("r1") == [0]
                took_s = time.monotonic() - began
                for each in waiting:
                    each.cancel()
        finally:
            _begin_again(server, how)
        # Five for the engine, and one for the server's calls.
        assert took_s < 8.0
        (told,) = bank.events("r1", "stopped_without_the_engine")
        assert "the log engine" in told["why"]
        bank.start("r2")
        assert bank.balances("a") == [1]


def test_what_was_answered_and_is_not_in_the_log_is_told_though_no_call_runs(
    tmp_path: Path, own_redis: Any, group: str
) -> None:
    """An engine that refuses at once ends the hand-over, not its report (invariant 5)."""
    url = own_redis.url(group=group)
    with operated(tmp_path, url, "--log-json", "--lease-term", "6") as bank:
        bank.start("w1", "r1")
        bank.until_listed()
        with rifl.connect(bank.replicas["r1"], group_path="fast") as channel:
            stub = bank_pb2_grpc.BankStub(channel)

            def deposit(reference: str) -> None:
                stub.Deposit(
                    bank_pb2.DepositRequest(reference=reference, account=reference, cents=1),
                    timeout=DEADLINE_S,
                )

            others = (f"other {number}" for number in itertools.count())

            def witnessed() -> bool:
                deposit(next(others))
                counted = statistics(channel)
                return counted is not None and counted.fast > 0

            # A connection to the witness takes its time, and the lease would be over by then.
            until(witnessed, "an answer needs no log")
            deposit("a")
            own_redis.stop()
            deposit("b")
            assert bank.stop("r1") == [0]
        (told,) = bank.events("r1", "stopped_without_the_engine")
        assert "stop no witness" in told["cost"]
        assert told["why"]
        own_redis.start()
        bank.start("r2")
        assert bank.balances("a", "b") == [1, 1]
