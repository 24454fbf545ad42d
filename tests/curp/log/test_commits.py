"""A group's log over engines of the shared log: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from curp.log._commits import GroupLog, first_keys
from curp.log._commits.sqlite import open_sqlite
from curp.log._creation import new_log
from curp.log._opening import open_engine, open_new
from rifl.testing import FakeClock
from sharedlog._engines.etcd.calls import LEASE_GRANT, LEASE_TIME_TO_LIVE, TXN, delete, get, put
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._engines.terms import BootClock
from tests.curp.log.conformance import LogConformance


class Place:
    """Where a log lives."""

    def __init__(self):
        self.opened = []

    def open(self):
        """One more engine."""
        self.opened.append(self.engine())
        return self.opened[-1]

    def close(self):
        """Close all engines."""
        for engine in self.opened:
            engine.close()


class InMemory(Place):
    """A log in memory, under a clock that is told."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.log = MemoryLog(first_keys(new_log()), clock=self.clock)

    def engine(self):
        """One more engine."""
        return GroupLog(MemoryEngine(self.log), clock=self.clock)

    def pass_time(self, seconds):
        """Let time pass."""
        self.clock.advance(seconds)


class InAFile(InMemory):
    """A log in a SQLite file, under a clock that is told."""

    def __init__(self, path, group="bank"):
        super().__init__()
        self.path, self.group = path, group
        self.new = new_log()

    def engine(self):
        """One more engine."""
        new, self.new = self.new, None
        clock = BootClock(self.clock, "this")
        return GroupLog(open_sqlite(self.path, self.group, new=new, clock=clock), clock=self.clock)


class Served(Place):
    """A group's log in a server, whose leases are moved instead of its clock."""

    def __init__(self, server, group):
        super().__init__()
        self.server, self.group = server, group
        self.url = server.url(group=group)
        self.new = new_log()

    def engine(self):
        """One more engine."""
        new, self.new = self.new, None
        return open_engine(self.url) if new is None else open_new(self.url, new)


class InRedis(Served):
    """In Redis."""

    def pass_time(self, seconds):
        """Let time pass."""
        with self.server.client() as client:
            key = f"curp:{{{self.group}}}:head"
            if client.hexists(key, "ends:lease"):
                client.hincrby(key, "ends:lease", -int(seconds * 1_000_000))


class InPostgres(Served):
    """In PostgreSQL."""

    def pass_time(self, seconds):
        """Let time pass."""
        with self.server.connect(autocommit=True) as connection:
            connection.execute(
                "UPDATE curp.key SET ends = ends - %s WHERE key = 'lease' AND log_id = "
                "(SELECT log_id FROM curp.log WHERE name = %s)",
                (seconds, self.group),
            )


class InEtcd(Served):
    """In etcd."""

    def pass_time(self, seconds):
        """Let time pass: the lease's key goes on under a shorter lease, or is gone."""
        engine = open_engine(self.url)
        log = engine._engine._log
        key = log.keys.key("lease")
        try:
            _, (found,) = log.read(get(key))
            if not found.kvs:
                return
            asked = pb.LeaseTimeToLiveRequest(id=found.kvs[0].lease)
            left_s = log.client.call(LEASE_TIME_TO_LIVE, asked, again=True).ttl - int(seconds)
            step = delete(key)
            if left_s > 0:
                asked = pb.LeaseGrantRequest(ttl=left_s)
                granted = log.client.call(LEASE_GRANT, asked, again=True)
                step = put(key, found.kvs[0].value, lease=granted.id)
            log.client.call(TXN, pb.TxnRequest(success=[step]), again=True)
        finally:
            engine.close()


SERVED = {"redis": InRedis, "postgres": InPostgres, "etcd": InEtcd}


@pytest.fixture(params=["memory", "sqlite", *SERVED])
def place(request, tmp_path):
    """A log of its own."""
    if request.param == "memory":
        place = InMemory()
    elif request.param == "sqlite":
        place = InAFile(tmp_path / "log.db")
    else:
        server = request.getfixturevalue(f"shared_{request.param}")
        place = SERVED[request.param](server, request.getfixturevalue("group"))
    yield place
    place.close()


class TestConformance(LogConformance):
    """``GroupLog``."""
