"""The ``curp`` command over real processes (DESIGN §7; operations)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

import rifl
from curp.cli.asking import Group, GroupError
from curp.cli.command import main
from curp.cli.serving import find_servicer
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0


def _free() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[list[str], str, str]]:
    """Two replicas of the bank, a witness in the list and one that is not."""
    with contextlib.ExitStack() as stack:

        def start(module: str, name: str, *arguments: str) -> Process:
            return stack.enter_context(started(module, *arguments, log=tmp_path / f"{name}.err"))

        witnesses = [start("curp.witness", f"w{n}", "--listen", "127.0.0.1:0") for n in (1, 2)]
        first, second = (process.line() for process in witnesses)
        addresses = [_free(), _free()]
        for number, address in enumerate(addresses, 1):
            process = start(
                "curp",
                f"r{number}",
                "serve",
                "tests.curp.replica.ledger:Bank",
                *("--engine", f"sqlite:///{tmp_path}/bank.log?group=bank"),
                *("--name", f"r{number}", "--listen", address, "--witness", first),
                *(part for replica in addresses for part in ("--replica", replica)),
                *("--conflict-key", "/bank.v1.Bank/Deposit=account"),
                *("--read-only", "/bank.v1.Bank/Balance"),
            )
            assert process.line(_DEADLINE_S) == address
        yield addresses, first, second


def _statuses(address: str) -> dict[str, dict[str, Any]]:
    found = Group([address]).statuses()
    return {status.replica: MessageToDict(status) for _, status in found if status is not None}


def test_serve_status_witness_and_transfer(
    group: tuple[list[str], str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A group is run, looked at and changed from the command line alone."""
    addresses, first, second = group

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments)
        return code, capsys.readouterr().out

    until(
        lambda: any(status["role"] == "leader" for status in _statuses(addresses[0]).values()),
        "one leads",
        _DEADLINE_S,
    )
    with rifl.connect(",".join(addresses)) as channel:
        stub = bank_pb2_grpc.BankStub(channel)
        request = bank_pb2.DepositRequest(reference="r", account="alice", cents=5)
        assert stub.Deposit(request, timeout=30).balance_cents == 5
        code, told = run("status", *addresses)
        assert code == 0
        assert f"witness {first}  normal" in told
        assert "leader" in told
        assert "standby" in told
        assert {
            status["role"] for status in json.loads(run("status", *addresses, "--json")[1])
        } == {
            "leader",
            "standby",
        }
        assert run("witness", "add", addresses[1], second)[0] == 0
        assert run("witness", "remove", addresses[0], first)[0] == 0
        assert run("witness", "replace", addresses[0], first, second)[0] == 1
        code, told = run("witness", "replace", addresses[0], second, first)
        assert (code, told.split(": ")[1]) == (0, f"witnesses {first}\n")
        assert stub.Deposit(request, timeout=30).balance_cents == 10
        leader = Group(addresses).configuration().leader
        other = "r2" if leader == addresses[0] else "r1"
        assert run("transfer", addresses[0], "--to", other)[0] == 0
        until(lambda: _statuses(addresses[0])[other]["role"] == "leader", "it leads", _DEADLINE_S)
        assert stub.Deposit(request, timeout=30).balance_cents == 15


def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name, a class that is no servicer, an engine that is none: exit code 1."""
    for name in ("tests.curp.replica.ledger", "tests.no:Such", "tests.curp.replica.ledger:Ledger"):
        with pytest.raises(GroupError):
            find_servicer(name)
    arguments = ["serve", "tests.curp.replica.ledger:Bank", "--engine", "nowhere://", "--name", "r"]
    assert main([*arguments, "--listen", "127.0.0.1:0"]) == 1
    assert "curp: " in capsys.readouterr().err
    assert main(["status", "127.0.0.1:1"]) == 1
