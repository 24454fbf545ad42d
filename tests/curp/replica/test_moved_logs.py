"""A real group before and after its log was moved to another engine (DESIGN §7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from curp.log import open_engine
from curp.log._copying import copy_log
from curp.log._errors import LeaseHeld
from curp.log._states import MOVED_KEY, MovedPlace
from tests.curp.logs import created
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import replica
from tests.curp.replica.test_kills import _entries, _Group
from tests.helpers.waiting import until
from tests.stores.postgres.servers import PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture
def group(tmp_path: Path, log: Any) -> Iterator[_Group]:
    """A group with its witness running."""
    made = _Group(tmp_path, log)
    made.start_witness()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def target() -> Iterator[str]:
    """Where the log goes."""
    server = PostgresServer()
    yield server.url(group="bank")
    server.stop()


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
def test_what_only_a_witness_holds_is_recovered_under_the_moved_log(
    group: _Group, target: str, tmp_path: Path
) -> None:
    """The log keeps its id and its witness list: the next leader asks the witness (5, 6)."""
    first = group.start("r1", die_at=["answered", 1])
    group.until_role("r1", "leader")
    client = ByHand(first)
    number = client.configuration().configuration
    assert _entries(client.deposit("one", "alice", 1)) == 1
    assert client.record(group.witness, "two", "alice", 2, configuration=number) == "ACCEPTED"
    begun: Any = client.begin_deposit("two", "alice", 2, configuration=number)
    assert begun.code() is not grpc.StatusCode.OK
    group.processes["r1"].wait()

    source = f"sqlite:///{tmp_path}/bank.log?group=bank"
    copied: Any = until(lambda: _copied(source, target), "its lease is over", 60)
    second = group.start("r2", url=target)
    group.until_role("r2", "leader")
    client.move(second)
    assert client.configuration().configuration > copied.configuration
    again = client.deposit("two", "alice", 2, attempt=2)
    assert (_entries(again), again.outcome) == (2, "replayed")
    assert _entries(client.deposit("three", "alice", 3)) == 3


def _copied(source: str, target: str) -> Any:
    try:
        return copy_log(source, target)
    except LeaseHeld:
        return None


def test_a_standby_of_the_old_log_never_leads_on_it(tmp_path: Path) -> None:
    """It was following when the log was marked as moved: it stops, and says where to (§7)."""
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")
    with contextlib.closing(open_engine(url)) as engine:
        # As the copy does: under a number of its own, with the lease.
        number = engine.take_leadership("copy", "", term_s=600.0)
        with replica(url) as standby:
            until(lambda: standby.replica.configuration().configuration == 0, "it looks on", 60)
            place = MovedPlace("token", "redis://there", 0)
            engine.put_metadata({MOVED_KEY: place.to_bytes()}, configuration=number)
            engine.end_leadership(number)
            until(lambda: standby.replica.role == "stopped", "it stops", 60)
            assert "LogMoved" in standby.replica.waiting_for
            assert "redis://there" in standby.replica.waiting_for
