"""Strangers' calls whose message never comes keep no caller from a group (DESIGN §7, §9)."""

from __future__ import annotations

import time
from pathlib import Path

import grpc

from curp.v1 import curp_pb2 as pb
from tests.curp.logs import created
from tests.curp.replica.running import replica
from tests.helpers.half_open import half_open
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
