"""Strangers' calls whose message never comes keep no caller from a group (DESIGN §7, §9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from curp.log import create_log
from curp.v1 import curp_pb2 as pb
from tests.curp.logs import created
from tests.curp.replica.running import replica
from tests.helpers.half_open import half_open
from tests.helpers.processes import started
from tests.helpers.waiting import until

_GROUP = "/curp.v1.Group/"
# Without a thread they wait for ever.
_AT_MOST_S = 60.0


def test_a_crowd_of_half_open_calls_keeps_no_operator_out(tmp_path: Path) -> None:
    """Status and Configuration are answered, and no thread of the application's is taken."""
    paths = [_GROUP + each for each in ("Status", "Configuration", "Sync", "Transfer")]
    crowd = {"127.0.0.1": paths * 50} | {f"127.0.1.{i}": [paths[i % 4]] for i in range(1, 101)}
    with (
        replica(created(f"sqlite:///{tmp_path}/bank.log?group=bank")) as running,
        grpc.insecure_channel(running.address) as channel,
        half_open(running.address, crowd) as strangers,
    ):
        until(lambda: strangers.ended > 0, "calls that had to make room")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            status = channel.unary_unary(paths[0])(b"", timeout=_AT_MOST_S)
            assert pb.GroupStatusReply.FromString(status).replica == "r1"
            channel.unary_unary(paths[1])(b"", timeout=_AT_MOST_S)


@pytest.mark.parametrize("command", ["serve", "witness", "lease-server"])
def test_commands_are_told_how_long_a_message_may_take(
    command: str, shared_redis: Any, tmp_path: Path
) -> None:
    """A call without a message ends after ``--max-message-s``, long before its own deadline."""
    log = f"sqlite:///{tmp_path}/bank.log?group=bank"
    module, arguments, method = {
        "serve": (
            "curp",
            ("serve", "tests.curp.replica.ledger:Bank", "--name", "r1", "--engine", log),
            f"{_GROUP}Configuration",
        ),
        "witness": ("curp.witness", (), "/curp.v1.Witness/Status"),
        "lease-server": (
            "rifl",
            ("lease-server", "--store", shared_redis.url(namespace="patience")),
            "/lease_server.v1.LeaseServer/Grant",
        ),
    }[command]
    if command == "serve":
        create_log(log)
    given = (*arguments, "--listen", "127.0.0.1:0", "--max-message-s", "0.2")
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with (
        started(module, *given, log=tmp_path / "process.err") as process,
        grpc.insecure_channel(process.line()) as channel,
    ):
        call = channel.stream_unary(method).future(never(), timeout=600)
        try:
            refusal = call.exception(60)
        finally:
            over.set()
    assert refusal.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
