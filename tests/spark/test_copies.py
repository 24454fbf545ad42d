"""Of two copies of a checkpoint one sends, over every store that keeps sessions (DESIGN §5, §8)."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
from chaos.sim.group.log import LogStore
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.running import replica
from tests.helpers.processes import Process
from tests.helpers.servers import serve
from tests.helpers.waiting import until

_NUMBERS = itertools.count()
# A process that was just begun imports Spark.
_SLOW_S = 120.0
Effects = Callable[[], dict[str, int]]


class Bank(bank_pb2_grpc.BankServicer):
    """Each deposit that runs is a row of the service's own table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = sqlite3.connect(":memory:", check_same_thread=False)
        self._table.execute("CREATE TABLE effect (reference TEXT)")

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto names it
        """Have the effect."""
        with self._lock:
            self._table.execute("INSERT INTO effect VALUES (?)", (request.reference,))
        return bank_pb2.Receipt(entry=1, balance_cents=request.cents)

    def effects(self) -> dict[str, int]:
        """Count the rows, by reference."""
        with self._lock:
            rows = self._table.execute("SELECT reference FROM effect").fetchall()
        return dict(collections.Counter(name for (name,) in rows))

    def close(self) -> None:
        """Let the table go."""
        self._table.close()


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb", "group"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Effects]]:
    """Serve over a store of each kind: where it listens, and what counts its effects."""
    name = f"copies{next(_NUMBERS)}"
    if request.param == "group":
        with replica(LogStore().engine()) as running:
            running.until_leading()
            yield running.address, lambda: dict(running.bank.paid)
        return
    url = "memory:"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'rifl.db'}"
    elif request.param == "redis":
        url = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "postgresql":
        url = request.getfixturevalue("shared_postgres").url(schema=name)
    elif request.param == "mariadb":
        url = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_")
    methods = {"/bank.v1.Bank/Balance": None}
    with (
        contextlib.closing(Bank()) as bank,
        rifl.Deduplicator(url, methods=methods) as dedup,
        serve(
            "sync",
            dedup=dedup,
            add=lambda server: bank_pb2_grpc.add_BankServicer_to_server(bank, server),
        ) as served,
    ):
        yield served.address, bank.effects


class Tasks:
    """The tasks of one copy, in a process of their own."""

    def __init__(self, log: Path) -> None:
        self._process = Process("tests.spark.copies", log=log, with_input=True)
        assert self._process.line(_SLOW_S) == "ready"

    def begin(self, **job: Any) -> None:
        """Begin a write."""
        self.say(json.dumps(job))

    def say(self, line: str) -> None:
        """Write a line to the process."""
        pipe = self._process._child.stdin
        assert pipe is not None
        pipe.write(f"{line}\n".encode())
        pipe.flush()

    def end(self) -> dict[str, Any]:
        """Wait for what became of it."""
        return json.loads(self._process.line(_SLOW_S))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        self._process.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tasks, Tasks]]:
    """Two processes with tasks."""
    directory = tmp_path_factory.mktemp("copies")
    with contextlib.ExitStack() as stack:
        both = [Tasks(directory / f"{each}.log") for each in range(2)]
        for each in both:
            stack.callback(each.close)
        yield both[0], both[1]


class Copy:
    """A copy of the query's checkpoint, and its newest run."""

    def __init__(self, target: str, place: str, tasks: Tasks) -> None:
        self._target = target
        self.place = place
        self.tasks = tasks
        self.run = f"{place}-1"

    def begin(self, batch: int, first: int, end: int, **more: Any) -> None:
        """Begin the tasks of a micro-batch."""
        self.tasks.begin(
            target=self._target,
            place=self.place,
            run=self.run,
            **{"batch": batch, "first": first, "end": end, **more},
        )

    def send(self, batch: int, first: int, end: int, **more: Any) -> dict[str, Any]:
        """Run them to their end."""
        self.begin(batch, first, end, **more)
        return self.tasks.end()


def test_of_two_copies_one_sends(service: tuple[str, Effects], two: tuple[Tasks, Tasks]) -> None:
    """At once, in turns, and adopted: no row is sent twice, whatever rows the other has."""
    target, effects = service
    copies = [Copy(target, place, tasks) for place, tasks in zip(("/a", "/b"), two, strict=True)]
    # Both begin the first micro-batch in the same moment, with other rows.
    for copy, end in zip(copies, (12, 15), strict=True):
        copy.begin(0, 0, end)
    ends = [copy.tasks.end() for copy in copies]
    assert sorted("error" in end for end in ends) == [False, True], ends
    kept, other = copies if "executed" in ends[0] else reversed(copies)
    assert len(effects()) == max(end.get("executed", 0) for end in ends)
    # In turns: in the micro-batch that was committed, and in the next one.
    sent = len(effects())
    for batch in (0, 1):
        refused = other.send(batch, 0, 20)
        assert f"from another checkpoint than {other.place}" in refused["error"]
    assert kept.send(1, sent, 20) == {"executed": 20 - sent, "replayed": 0}

    # Its driver is started again within a micro-batch: what the run before sent is known, and
    # that one's leftovers are refused.
    assert kept.send(2, 20, 25, commit=False)["executed"] == 5
    before, kept.run = kept.run, f"{kept.place}-2"
    assert kept.send(2, 20, 30) == {"executed": 5, "replayed": 5}
    kept.run, now = before, kept.run
    for batch in (2, 3):
        assert "followed this one" in kept.send(batch, 20, 40)["error"]
    kept.run = now

    # Moved while the first driver is in a micro-batch: the calls that it has yet to make are not
    # executed, though it would have more rows in it.
    kept.begin(3, 30, 45, held=35)
    until(lambda: "r34" in effects(), "the first rows")
    assert "another checkpoint" in other.send(3, 30, 40)["error"]
    assert other.send(3, 30, 40, adopt="true", commit=False) == {"executed": 5, "replayed": 5}
    kept.tasks.say("go on")
    assert "SESSION_CLOSED" in kept.tasks.end()["error"]
    assert len(effects()) == 40
    # A task that runs again finds its channel closed, and then asks why.
    assert "sent by another run" in kept.send(3, 30, 45)["error"]
    assert "another checkpoint" in kept.send(3, 30, 45)["error"]
    kept.run = f"{kept.place}-3"
    # Where it is now it goes on, started again without the option, and there alone.
    other.run = f"{other.place}-2"
    assert other.send(3, 30, 40) == {"executed": 0, "replayed": 10}
    for batch in (3, 4):
        assert "another checkpoint" in kept.send(batch, 40, 45)["error"]
    assert other.send(4, 40, 50) == {"executed": 10, "replayed": 0}
    assert effects() == {f"r{each}": 1 for each in range(50)}
