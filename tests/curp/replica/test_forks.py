"""A replica, a witness and a log engine belong to the process that made them (DESIGN §5)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.operated import DEADLINE_S, operated


def test_what_a_group_is_made_of_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    """Every use is ForkedProcess there, and closing it does nothing to the parent's."""
    forked = subprocess.run(
        [sys.executable, "-m", "tests.curp.replica.forking", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = forked.stdout.splitlines()
    assert lines[:1] == ["12 of 12 refused"], forked.stderr
    assert lines[1:] == ["standby"], forked.stderr


@pytest.mark.slow
def test_a_child_that_a_handler_of_curp_serve_forks_can_be_ended(tmp_path: Path) -> None:
    """It has no server to stop: SIGTERM ends it as it would any process (DESIGN §4)."""
    url = f"sqlite:///{tmp_path}/bank.log?group=bank"
    with operated(tmp_path, url, replicas=1, witnesses=0) as group:
        group.serves["r1"] = ("tests.curp.replica.children_bank:ChildrenBank",)
        group.start()
        with rifl.connect(group.replicas["r1"]) as channel:
            request = bank_pb2.DepositRequest(reference="a", account="a", cents=1)
            receipt = bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=DEADLINE_S)
        assert receipt.balance_cents == -signal.SIGTERM
        assert group.stop("r1") == [0]
