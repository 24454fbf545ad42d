"""Groups of real processes under load and faults; what the callers were told is checked (§7)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from chaos.faulty_path import FaultyPath
from chaos.group_processes import GroupProcesses
from examples.replicated_bank.load import Load
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.faults]

MODULE = "examples.replicated_bank"
WAIT_S = 120.0
SOME = 20


def exact(load: Load) -> None:
    """Nothing lost, nothing doubled, and an order that explains every answer."""
    report = load.finish()
    assert report.violations == []
    assert (report.duplicates, report.lost) == (0, 0)
    assert report.effects > 0


def numbered(group: GroupProcesses, more_than: int) -> int:
    """Wait until all witnesses serve, under a later number than this one; the number."""

    def listed() -> int:
        found = group.status(group.leader())
        if found is None or len(found.configuration.witnesses) < len(group.witnesses):
            return 0
        serving = all(witness.mode == "normal" for witness in found.witnesses)
        number = found.configuration.configuration
        return number if serving and number > more_than else 0

    number: int = until(listed, "the witnesses are listed", WAIT_S)
    return number


class _LogServer:
    """A server that others share, and the group's log in it."""

    def __init__(self, server: Any, group: str) -> None:
        self._server = server
        self._group = group
        nodes = getattr(server, "nodes", None) or [server]
        self.ports: list[int] = [node.port for node in nodes]

    def url(self, **options: object) -> str:
        """The log's URL."""
        url: str = self._server.url(group=self._group, **options)
        return url


@pytest.fixture(
    params=[
        "redis",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("postgres", "etcd")),
    ],
)
def log_server(request: pytest.FixtureRequest, group: str) -> _LogServer:
    """Where a log is, of each engine for several machines."""
    return _LogServer(request.getfixturevalue(f"shared_{request.param}"), group)


def test_leaders_stopped_and_killed(tmp_path: Path, log_server: _LogServer) -> None:
    """A zombie that wakes up, a successor killed while it recovers: exactly once (1, 4, 5).

    Not over a file: a process stopped inside a commit keeps the file's lock.
    """
    log = log_server.url()
    with (
        GroupProcesses(tmp_path, MODULE, log) as group,
        Load(group.replicas, callers=4, accounts=32) as load,
    ):
        load.await_answers(SOME, WAIT_S)
        zombie = group.leader(timeout_s=WAIT_S)
        group.stop(zombie)
        successor = group.leader(not_=zombie, timeout_s=WAIT_S)
        load.await_answers(SOME, WAIT_S)
        group.resume(zombie)

        def follows() -> bool:
            found = group.status(zombie)
            return found is not None and found.role == "standby"

        until(follows, "the old leader follows", WAIT_S)
        load.await_answers(SOME, WAIT_S)

        others = [address for address in group.replicas if address != successor]
        group.kill(successor)

        def recovering() -> str:
            for address in others:
                found = group.status(address)
                if found is not None and found.role in ("recovering", "leader"):
                    return address
            return ""

        second: str = until(recovering, "somebody takes over", WAIT_S)
        group.kill(second)
        group.leader(not_=second, timeout_s=WAIT_S)
        load.await_answers(SOME, WAIT_S)
        group.start(successor)
        group.start(second)
        load.await_answers(SOME, WAIT_S)
        exact(load)


def test_witnesses_stopped_cut_off_and_restarted(tmp_path: Path) -> None:
    """Slow, unreachable, gone, back and empty: calls go on, and the next leader is safe (2, 12)."""
    log = f"sqlite:///{tmp_path / 'log'}?group=bank"
    with FaultyPath() as path:
        group = GroupProcesses(tmp_path, MODULE, log, witnesses=2)
        # The second one is there when the leadership changes while the first one is not.
        group.listed[0] = path.target
        witness = group.witnesses[0]
        port = int(witness.rpartition(":")[2])
        path.lead_to(port)
        with group, Load(group.replicas, callers=4, accounts=32) as load:
            load.await_answers(SOME, WAIT_S)
            number = numbered(group, 0)
            group.stop(witness)
            load.await_answers(SOME, WAIT_S)
            group.resume(witness)
            load.await_answers(SOME, WAIT_S)

            path.lead_to(None)
            path.reset()
            load.await_answers(SOME, WAIT_S)
            path.lead_to(port)
            load.await_answers(SOME, WAIT_S)

            group.kill(witness)
            load.await_answers(SOME, WAIT_S)
            group.start(witness)
            # Only then may the leader be lost: the witness is worth something again.
            numbered(group, number)
            load.await_answers(SOME, WAIT_S)
            group.kill(group.leader(timeout_s=WAIT_S))
            load.await_answers(SOME, WAIT_S)
            exact(load)


def test_a_leader_cut_off_from_the_log(tmp_path: Path, log_server: _LogServer) -> None:
    """It cannot append, so another one leads; when the path is back it follows (1, 4)."""
    logs, paths = [], []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            log = log_server.url(timeout_s=2)
            paths.append([stack.enter_context(FaultyPath()) for _ in log_server.ports])
            for path, port in zip(paths[-1], log_server.ports, strict=True):
                path.lead_to(port)
                assert f"127.0.0.1:{port}" in log
                log = log.replace(f"127.0.0.1:{port}", path.target)
            logs.append(log)
        group = stack.enter_context(GroupProcesses(tmp_path, MODULE, logs, replicas=2))
        load = stack.enter_context(Load(group.replicas, callers=4, accounts=32))
        load.await_answers(SOME, WAIT_S)
        leader = group.leader(timeout_s=WAIT_S)
        cut = paths[group.replicas.index(leader)]
        for path in cut:
            path.lead_to(None)
            path.reset()
        group.leader(not_=leader, timeout_s=WAIT_S)
        load.await_answers(SOME, WAIT_S)
        for path, port in zip(cut, log_server.ports, strict=True):
            path.lead_to(port)

        def follows() -> bool:
            found = group.status(leader)
            return found is not None and found.role == "standby" and not found.waiting_for

        until(follows, "the old leader follows", WAIT_S)
        load.await_answers(SOME, WAIT_S)
        exact(load)


@pytest.mark.parametrize(
    "engine",
    ["postgres", *(pytest.param(each, marks=pytest.mark.long) for each in ("redis", "etcd"))],
)
def test_the_server_of_the_log_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest, group: str, engine: str
) -> None:
    """SIGKILL, and started again: the group goes on, and nothing that was told is lost (1, 4)."""
    server = request.getfixturevalue(f"own_{engine}")
    with (
        GroupProcesses(tmp_path, MODULE, server.url(group=group), replicas=2) as processes,
        Load(processes.replicas, callers=4, accounts=32) as load,
    ):
        for _ in range(2):
            load.await_answers(SOME, WAIT_S)
            if engine == "etcd":
                server.stop()
                server.heal()
            else:
                (server.kill if engine == "postgres" else server.stop)()
                server.start()
        load.await_answers(SOME, WAIT_S)
        exact(load)


def test_a_leader_cut_off_from_its_witness_dies(tmp_path: Path) -> None:
    """Its calls are synced; the next one waits for the witness, visibly, and serves then (1, 5)."""
    log = f"sqlite:///{tmp_path / 'log'}?group=bank"
    with FaultyPath() as path:
        group = GroupProcesses(tmp_path, MODULE, log, replicas=2)
        group.listed[0] = path.target
        port = int(group.witnesses[0].rpartition(":")[2])
        path.lead_to(port)
        with group, Load(group.replicas, callers=4, accounts=32) as load:
            load.await_answers(SOME, WAIT_S)
            path.lead_to(None)
            path.reset()
            load.await_answers(SOME, WAIT_S)
            leader = group.leader(timeout_s=WAIT_S)
            group.kill(leader)
            successor = next(each for each in group.replicas if each != leader)

            def waits() -> bool:
                found = group.status(successor)
                return found is not None and "a witness of" in found.waiting_for

            until(waits, "it says what it waits for", WAIT_S)
            path.lead_to(port)
            assert group.leader(timeout_s=WAIT_S) == successor
            load.await_answers(SOME, WAIT_S)
            exact(load)
