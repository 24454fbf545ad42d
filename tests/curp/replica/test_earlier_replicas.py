"""Replicas of earlier releases, as commands see them (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from curp._cli.command import main
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc


class _Replica(curp_pb2_grpc.GroupServicer):
    """Says the same of itself whenever it is asked."""

    def __init__(self, status: pb.GroupStatusReply) -> None:
        self._reply = status

    def Status(self, request: Any, context: Any) -> pb.GroupStatusReply:  # noqa: N802 - the proto's
        return self._reply


@pytest.fixture
def status() -> pb.GroupStatusReply:
    """What a leader with nothing wrong says, and said before it was asked who serves."""
    return pb.GroupStatusReply(replica="r1", role="leader", applied=7, tail=7)


@pytest.fixture
def address(status: pb.GroupStatusReply) -> Iterator[str]:
    """Where it answers."""
    server = grpc.server(ThreadPoolExecutor(2))
    curp_pb2_grpc.add_GroupServicer_to_server(_Replica(status), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_leader_that_says_nothing_of_its_lease_leads(
    status: pb.GroupStatusReply, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of before has no word for it; one that has says when its lease is over (DESIGN §7)."""
    assert main(["status", address]) == 0
    assert "  leader  " in capsys.readouterr().out
    status.serves = False
    assert main(["status", address]) == 1
    assert "leader whose lease is over" in capsys.readouterr().out
    status.serves = True
    assert main(["status", address]) == 0
