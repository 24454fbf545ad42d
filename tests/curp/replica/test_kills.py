"""Leaders killed, stopped and continued, in processes of their own (DESIGN §7: 4, 5, 6, 13)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from examples.bank.v1 import bank_pb2
from tests.curp.engines import over
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.suspended import suspend
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_DEADLINE_S = 60.0


class _Group:
    """One witness, and replicas over one log."""

    def __init__(self, tmp_path: Path, log: Any) -> None:
        self._path = tmp_path
        self._log = log
        self.processes: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        self.witness = ""

    def start_witness(self) -> None:
        process = Process("curp.witness", "--listen", "127.0.0.1:0", log=self._path / "w.err")
        self.processes["w"] = process
        self.witness = process.line()

    def start(self, name: str, **more: Any) -> str:
        address = f"127.0.0.1:{free_port()}"
        given = {
            "url": self._log.url,
            "name": name,
            "address": address,
            "witnesses": [self.witness],
            "tuning": {"batch_delay_s": 600.0},
            **more,
        }
        process = Process(
            "tests.curp.replica.server", json.dumps(given), log=self._path / f"{name}.err"
        )
        self.processes[name] = process
        self.addresses[name] = address
        assert process.line(_DEADLINE_S) == "ready"
        return address

    def until_role(self, name: str, role: str) -> None:
        process = self.processes[name]
        until(lambda: process.line(_DEADLINE_S) == role, f"{name} is {role}", _DEADLINE_S)

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def suspend(self, name: str) -> None:
        """Stop it, where it holds up nobody."""
        file = self._path / "bank.log" if self._log.engine == "sqlite" else None
        suspend(self.processes[name].pid, file)

    def status(self, name: str) -> pb.GroupStatusReply:
        with grpc.insecure_channel(self.addresses[name]) as channel:
            found: pb.GroupStatusReply = curp_pb2_grpc.GroupStub(channel).Status(
                pb.GroupStatusRequest(), timeout=30, wait_for_ready=True
            )
            return found

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.close()


@pytest.fixture
def group(tmp_path: Path, log: Any) -> Iterator[_Group]:
    """A group with its witness running."""
    made = _Group(tmp_path, log)
    made.start_witness()
    try:
        yield made
    finally:
        made.close()


def _entries(reply: Any) -> int:
    assert reply.ok, reply
    return bank_pb2.Receipt.FromString(reply.response).entry


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
@pytest.mark.parametrize(
    ("point", "times", "fast"),
    [
        # The first passing is the client's first call.
        ("executed", 2, True),
        ("answered", 1, True),
        # Before it: the block of client ids, the client's registration, and that call.
        ("appended", 4, False),
        ("reply", 4, False),
    ],
)
def test_a_leader_killed_at_any_point_loses_and_doubles_nothing(
    group: _Group, point: str, times: int, fast: bool
) -> None:
    """The witness accepted the call; its retry at the new leader is its only effect (5, 6)."""
    first = group.start("r1", die_at=[point, times])
    group.until_role("r1", "leader")
    second = group.start("r2")
    client = ByHand(first)
    number = client.configuration().configuration
    assert _entries(client.deposit("one", "alice", 1)) == 1
    assert client.record(group.witness, "two", "alice", 2, configuration=number) == "ACCEPTED"
    # Without the number its answer waits for the log.
    begun = client.begin_deposit("two", "alice", 2, configuration=number if fast else 0)
    assert begun.code() is not grpc.StatusCode.OK
    assert group.processes["r1"].wait() == -signal.SIGKILL
    group.until_role("r2", "leader")
    client.move(second)
    again = client.deposit("two", "alice", 2, attempt=2)
    assert (_entries(again), again.outcome) == (2, "replayed")
    assert _entries(client.deposit("three", "alice", 3)) == 3


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
@pytest.mark.parametrize("witnessed", [True, False])
def test_a_leader_killed_in_a_clients_first_call_knows_it_no_less(
    group: _Group, witnessed: bool
) -> None:
    """Its registration is in the log before the handler starts: the retry is the effect (§5)."""
    first = group.start("r1", die_at=["executed", 1])
    group.until_role("r1", "leader")
    second = group.start("r2")
    client = ByHand(first)
    number = client.configuration().configuration
    if witnessed:
        verdict = client.record(group.witness, "one", "alice", 1, configuration=number)
        assert verdict == "ACCEPTED"
    begun = client.begin_deposit("one", "alice", 1, configuration=number if witnessed else 0)
    assert begun.code() is not grpc.StatusCode.OK
    assert group.processes["r1"].wait() == -signal.SIGKILL
    group.until_role("r2", "leader")
    client.move(second)
    again = client.deposit("one", "alice", 1, attempt=2)
    assert (_entries(again), again.outcome) == (1, "replayed" if witnessed else "executed")
    assert _entries(client.deposit("two", "alice", 2)) == 2


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
@pytest.mark.parametrize("witnessed", [True, False])
def test_a_leader_killed_before_a_clients_first_handler_knows_it_no_less(
    group: _Group, witnessed: bool
) -> None:
    """Its registration is in the log before its id is told: the retry is the effect (§5)."""
    first = group.start("r1")
    group.until_role("r1", "leader")
    second = group.start("r2")
    client = ByHand(first)
    number = client.configuration().configuration
    if witnessed:
        verdict = client.record(group.witness, "one", "alice", 1, configuration=number)
        assert verdict == "ACCEPTED"
    group.signal("r1", signal.SIGKILL)
    group.until_role("r2", "leader")
    client.move(second)
    again = client.deposit("one", "alice", 1, attempt=2)
    assert (_entries(again), again.outcome) == (1, "replayed" if witnessed else "executed")
    assert _entries(client.deposit("two", "alice", 2)) == 2


@pytest.mark.parametrize("log", ["etcd"], indirect=True)
def test_what_etcd_takes_in_no_append_stops_no_leader(group: _Group) -> None:
    """One call is refused before it is placed, many are recovered in pieces (invariant 5)."""
    # Megabytes of calls: a busy machine takes longer than a short lease for some of them.
    patient = {"tuning": {"batch_delay_s": 600.0, "lease_term_s": 4.0}}
    first = group.start("r1", **patient)
    group.until_role("r1", "leader")
    second = group.start("r2", **patient)
    client = ByHand(first)
    number = client.configuration().configuration
    refused = client.deposit("r" * (2 << 20), "large", 1, configuration=number)
    assert refused.reason == "REQUEST_TOO_LARGE"
    # By default etcd takes one mebibyte at once.
    names = {seq: f"{seq}-" + "r" * 60_000 for seq in range(2, 42)}
    for seq, name in names.items():
        verdict = client.record(group.witness, name, f"a{seq}", seq, configuration=number)
        assert verdict == "ACCEPTED"
        answer = client.deposit(name, f"a{seq}", seq, configuration=number)
        assert (_entries(answer), client.mark(answer)) == (1, "")
    assert group.status("r1").unsynced >= 40
    group.signal("r1", signal.SIGKILL)
    group.until_role("r2", "leader")
    client.move(second)
    for seq, name in names.items():
        again = client.deposit(name, f"a{seq}", seq, attempt=2)
        assert (_entries(again), again.outcome) == (1, "replayed")
    assert _entries(client.deposit("last", "large", 42)) == 1


@pytest.mark.parametrize("log", over("sqlite", "postgres", "etcd"), indirect=True)
def test_a_zombie_leader_is_refused_everywhere_and_follows(group: _Group) -> None:
    """Stopped, deposed and continued: it drops its answers and begins over (invariant 4)."""
    first = group.start("r1")
    group.until_role("r1", "leader")
    client = ByHand(first)
    number = client.configuration().configuration
    client.deposit("one", "alice", 1)
    assert client.record(group.witness, "two", "alice", 2, configuration=number) == "ACCEPTED"
    assert client.mark(client.deposit("two", "alice", 2, configuration=number)) == ""
    # Nobody was told that this one is final: no witness has it.
    assert client.deposit("nobody's", "bob", 3, configuration=number).ok
    group.suspend("r1")
    second = group.start("r2")
    group.until_role("r2", "leader")
    group.signal("r1", signal.SIGCONT)
    # Whatever it still answers as a leader, no witness vouches for any more.
    assert client.record(group.witness, "four", "bob", 4, configuration=number) != "ACCEPTED"
    group.until_role("r1", "standby")
    client.move(second)
    assert _entries(client.deposit("two", "alice", 2, attempt=2)) == 2
    assert _entries(client.deposit("nobody's", "bob", 3, attempt=2)) == 1
    tail = group.status("r2").tail
    until(lambda: group.status("r1").applied >= tail, "the zombie has caught up", _DEADLINE_S)
    client.move(first)
    refused = client.deposit("five", "bob", 5)
    assert refused.reason == "NOT_LEADER"
    # Its state is the log's again: it leads on.
    group.processes["r2"].kill()
    group.until_role("r1", "leader")
    assert _entries(client.deposit("five", "bob", 5, attempt=2)) == 2
    assert _entries(client.deposit("six", "alice", 6)) == 3


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_a_new_leader_that_dies_in_its_recovery_is_succeeded(group: _Group) -> None:
    """Nobody serves while the only witness is away, and nothing is lost by it (invariant 5)."""
    first = group.start("r1")
    group.until_role("r1", "leader")
    client = ByHand(first)
    number = client.configuration().configuration
    client.deposit("one", "alice", 1)
    assert client.record(group.witness, "two", "alice", 2, configuration=number) == "ACCEPTED"
    assert client.mark(client.deposit("two", "alice", 2, configuration=number)) == ""
    group.signal("w", signal.SIGSTOP)
    group.processes["r1"].kill()
    group.start("r2")
    group.until_role("r2", "recovering")
    until(
        lambda: "witness" in group.status("r2").waiting_for,
        "it says what it waits for",
        _DEADLINE_S,
    )
    group.processes["r2"].kill()
    third = group.start("r3")
    group.until_role("r3", "recovering")
    group.signal("w", signal.SIGCONT)
    group.until_role("r3", "leader")
    client.move(third)
    again = client.deposit("two", "alice", 2, attempt=2)
    assert (_entries(again), again.outcome) == (2, "replayed")
