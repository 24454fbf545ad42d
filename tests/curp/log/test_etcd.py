"""The log in etcd: the conformance suite, over a cluster of three nodes (DESIGN §7)."""

from __future__ import annotations

import pytest

from curp.log import open_engine
from curp.log.creation import new_log
from curp.log.etcd.calls import (
    LEASE_GRANT,
    LEASE_TIME_TO_LIVE,
    TXN,
    delete,
    get,
    put,
)
from curp.log.etcd.v1 import etcd_pb2 as pb
from tests.curp.log.conformance import LogConformance


class Place:
    """A group's log in a cluster, whose leases are moved instead of its clock."""

    def __init__(self, cluster, group, **options):
        self.url = cluster.url(group=group, **options)
        self.opened = []
        self.new = new_log()

    def open(self, **options):
        """One more engine; the first creates the log."""
        self.opened.append(open_engine(self.url, new=self.new, **options))
        self.new = None
        return self.opened[-1]

    def pass_time(self, seconds):
        """Let time pass: the lease's key goes on under a shorter lease, or is gone."""
        log = open_engine(self.url)._log
        try:
            _, found = log.read(get(log.keys.lease))
            if not found[0].kvs:
                return
            (lease,) = found[0].kvs
            asked = pb.LeaseTimeToLiveRequest(id=lease.lease)
            left_s = log.client.call(LEASE_TIME_TO_LIVE, asked, again=True).ttl - int(seconds)
            if left_s > 0:
                asked = pb.LeaseGrantRequest(ttl=left_s)
                granted = log.client.call(LEASE_GRANT, asked, again=True)
                step = put(lease.key, lease.value, lease=granted.id)
            else:
                step = delete(lease.key)
            log.client.call(TXN, pb.TxnRequest(success=[step]), again=True)
        finally:
            log.close()

    def close(self):
        """Close all engines."""
        for engine in self.opened:
            engine.close()


@pytest.fixture
def place(shared_etcd, group):
    """A log of its own in the shared cluster."""
    place = Place(shared_etcd, group)
    yield place
    place.close()


class TestEtcdConformance(LogConformance):
    """``EtcdEngine``."""

    @pytest.fixture
    def place(self, place):
        """A log in etcd."""
        return place
