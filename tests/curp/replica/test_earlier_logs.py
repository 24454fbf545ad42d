"""Logs that an earlier release created by itself, without an id (DESIGN §7)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from curp.log import open_engine
from curp.log._creation import log_id
from curp.log._engine import NewLog
from curp.log._opening import open_new
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import replica
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_DEADLINE_S = 60.0
_EARLIER = "tests.curp.replica.before_log_ids"


def _older(directory: Path) -> str:
    url = f"sqlite:///{directory}/bank.log?group=bank"
    # What such a release made: the tables are the same, the metadata empty.
    open_new(url, NewLog({}), layout=1).close()
    return url


def _id(url: str) -> int:
    with contextlib.closing(open_engine(url)) as engine:
        return log_id(engine)


def test_a_log_of_an_earlier_release_gets_its_id_from_its_next_leader(tmp_path: Path) -> None:
    """It opens as it is, and the id that its leader drew stays (DESIGN §7: the way over)."""
    url = _older(tmp_path)
    assert _id(url) == 0
    with replica(url) as running:
        running.until_leading()
        assert ByHand(running.address).deposit("one", "alice", 1).ok
    drawn = _id(url)
    assert drawn
    with replica(url, "r2") as running:
        running.until_leading()
        assert running.bank.paid == {"one": 1}
    assert _id(url) == drawn


class _Group:
    """A witness and a leader of before logs had ids, as processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[Process] = []
        self.url = _older(directory)
        self.witness = f"127.0.0.1:{free_port()}"
        self._serving = self._run(_EARLIER, "witness", "--listen", self.witness)
        self.lead("r1")

    def lead(self, name: str) -> None:
        """Start a replica of before; it leads."""
        address = f"127.0.0.1:{free_port()}"
        given = {
            "url": self.url,
            "name": name,
            "address": address,
            "witnesses": [self.witness],
            # Nothing is appended by time: what was answered first is on the witness alone.
            "tuning": {"lease_term_s": 1.0, "batch_delay_s": 600.0},
        }
        self._leading = process = self._run(_EARLIER, "server", json.dumps(given))
        until(lambda: process.line(_DEADLINE_S) == "leader", f"{name} leads", _DEADLINE_S)
        self.address = address

    def kill_leader(self) -> None:
        self._leading.kill()

    def upgrade_witness(self) -> None:
        """Put one of this release in its place; nobody tells the leader."""
        self._serving.kill()
        self._serving = self._run("curp.witness", "--listen", self.witness)

    def client(self) -> ByHand:
        """A client with one call in the log, and one that only the witness holds."""
        client = ByHand(self.address)
        assert client.deposit("one", "alice", 1).ok
        number = client.configuration().configuration
        assert client.record(self.witness, "two", "bob", 2, configuration=number) == "ACCEPTED"
        answer = client.deposit("two", "bob", 2, configuration=number)
        assert answer.ok
        assert client.mark(answer) == ""
        return client

    def close(self) -> None:
        for process in self._processes:
            process.close()

    def _run(self, *command: str) -> Process:
        log = self._directory / f"{len(self._processes)}.err"
        process = Process(*command, log=log)
        self._processes.append(process)
        assert process.line(_DEADLINE_S)
        return process


@pytest.fixture
def group(tmp_path: Path) -> Iterator[_Group]:
    """One that runs."""
    with contextlib.closing(_Group(tmp_path)) as made:
        yield made


def test_where_witnesses_are_upgraded_first_a_killed_leader_leaves_all_to_its_successor(
    group: _Group,
) -> None:
    """They serve who knows the name alone, and who knows the log's id, too (invariant 5)."""
    asking = ByHand(group.address)
    before = asking.configuration()
    assert list(before.witnesses) == [group.witness]
    group.upgrade_witness()
    # It finds out when it tells the witness what is in the log: the second one has the first
    # one appended, which it conflicts with.
    for seq in (1, 2):
        assert asking.deposit(f"{seq}", "zoe", seq, configuration=before.configuration).ok

    def listed() -> bool:
        now = asking.configuration()
        return now.configuration > before.configuration and list(now.witnesses) == [group.witness]

    until(listed, "the leader lists it again", _DEADLINE_S)
    client = group.client()
    group.kill_leader()
    with replica(group.url, "r2", witnesses=[group.witness]) as running:
        running.until_leading()
        client.move(running.address)
        assert client.deposit("two", "bob", 2, attempt=2).outcome == "replayed"
        assert running.bank.paid == {"1": 1, "2": 1, "one": 1, "two": 1}
    assert _id(group.url)


def test_where_replicas_are_upgraded_first_they_wait_and_one_of_before_goes_on(
    group: _Group,
) -> None:
    """A witness of before refuses who names the log's id: nobody serves without it (inv. 5)."""
    client = group.client()
    number = client.configuration().configuration
    group.kill_leader()
    wanted = f"a witness of configuration {number} that never restarted"
    with replica(group.url, "r2", witnesses=[group.witness]) as running:
        until(lambda: wanted in running.replica.waiting_for, "it says so", _DEADLINE_S)
        assert running.replica.role != "leader"
    group.lead("r3")
    client.move(group.address)
    assert client.deposit("two", "bob", 2, attempt=2).outcome == "replayed"
    assert client.balance("bob", 3).ok
