"""Requests and recoveries above an append's 64 MiB, between processes over SQLite (DESIGN §7)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.curp.logs import created
from tests.curp.replica.by_hand import ByHand
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_DEADLINE_S = 120.0
_MIB = 1 << 20
# gRPC takes four mebibytes unless it is told otherwise (docs/reference/curp.md).
_MESSAGES = [
    ("grpc.max_receive_message_length", 80 * _MIB),
    ("grpc.max_send_message_length", 80 * _MIB),
]


class _Group:
    """A witness and two replicas, of which the first one leads."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.processes: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        self._directory, self._stack = directory, stack
        self._url = created(f"sqlite:///{directory}/bank.log?group=bank")
        self.witness = self._start("w", "curp.witness", "--listen", "127.0.0.1:0").line()

    def _start(self, name: str, *arguments: str) -> Process:
        process = Process(*arguments, log=self._directory / f"{name}.err")
        self._stack.callback(process.close)
        self.processes[name] = process
        return process

    def start(self, name: str, role: str, **more: Any) -> str:
        """Start a replica that appends when it has to; wait for what it does; its address."""
        address = self.addresses[name] = f"127.0.0.1:{free_port()}"
        given = {
            "url": self._url,
            "name": name,
            "address": address,
            "witnesses": [self.witness],
            "tuning": {"batch_delay_s": 600.0, "batch_entries": 1000, "max_unsynced": 1000},
            **more,
        }
        process = self._start(name, "tests.curp.replica.server", json.dumps(given))
        assert process.line(_DEADLINE_S) == "ready"
        self.until_role(name, role)
        return address

    def until_role(self, name: str, role: str) -> None:
        """Wait until a replica has told of a role."""
        process = self.processes[name]
        until(lambda: process.line(_DEADLINE_S) == role, f"{name} is {role}", _DEADLINE_S)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[_Group]:
    """A group of which only the witness runs."""
    with contextlib.ExitStack() as stack:
        yield _Group(tmp_path, stack)


def test_a_request_of_65_mib_is_refused_before_it_is_placed(group: _Group) -> None:
    """Every replica lives, the same one leads, and its caller is told (invariant 1; §9)."""
    first = group.start("r1", "leader", options=_MESSAGES)
    group.start("r2", "standby", options=_MESSAGES)
    client = ByHand(first, options=_MESSAGES)
    number = client.configuration().configuration
    # One append holds 64 MiB. No witness takes it, so that its call has no number.
    large = "r" * (65 * _MIB)
    refused = client.deposit(large, "a", 1)
    assert (refused.reason, refused.outcome) == ("REQUEST_TOO_LARGE", "not-executed")
    refused = client.deposit(large, "a", 2, configuration=number)
    assert (refused.reason, refused.outcome) == ("REQUEST_TOO_LARGE", "unknown")
    assert client.deposit("small", "a", 3).ok
    assert all(process.alive for process in group.processes.values())
    found = client.configuration()
    assert (found.configuration, found.leader) == (number, first)


@pytest.mark.long
def test_a_recovery_of_111_answers_of_900_kb_loses_none(group: _Group) -> None:
    """It is appended in pieces that an append holds, though all together it holds not (5)."""
    more = {"answer_bytes": 900_000}
    first = group.start("r1", "leader", **more)
    second = group.start("r2", "standby", **more)
    # Each keeps 64 MiB of answers at most.
    clients = [ByHand(first) for _ in range(3)]
    calls = [(clients[at % 3], f"a{at}", 1 + at // 3) for at in range(111)]
    number = clients[0].configuration().configuration
    for client, name, seq in calls:
        verdict = client.record(group.witness, name, name, seq, configuration=number)
        assert verdict == "ACCEPTED"
        answer = client.deposit(name, name, seq, configuration=number)
        assert (answer.ok, client.mark(answer)) == (True, "")
        assert len(answer.response or b"") > 900_000
    os.kill(group.processes["r1"].pid, signal.SIGKILL)
    group.until_role("r2", "leader")
    for client in clients:
        client.move(second)
    for client, name, seq in calls:
        again = client.deposit(name, name, seq, attempt=2)
        assert (again.ok, again.outcome) == (True, "replayed")
    assert clients[0].deposit("last", "last", 38).ok
