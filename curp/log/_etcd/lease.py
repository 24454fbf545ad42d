"""Leadership in etcd: a key that goes with a lease of etcd's own (invariant 10)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from curp.log import _checks as checks
from curp.log._engine import Leadership
from curp.log._errors import CorruptLog, EngineUnavailable, LeaseHeld
from curp.log._etcd.connection import Connection, Facts
from sharedlog._engines.etcd.calls import (
    LEASE_GRANT,
    LEASE_TIME_TO_LIVE,
    delete,
    equal,
    get,
    put,
    revision_of,
    unchanged,
)
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

# What is said to be left of a lease that is over, until etcd has noticed.
_ENDING_S = 0.1
_ROUNDS = 20


class LeaseKey:
    """A group's configuration number, whose it is, and the lease. Any thread.

    The lease's key is there while it runs: etcd removes it by a write of its own, so
    a take-over that requires its absence is judged at one place in etcd's order, by
    no clock of ours.

    Each renewal is a *new* lease of etcd's, to which the key is moved by a conditional
    write. A mere keep-alive would not do: it is answered from one member's memory, so a
    member that led once and does not know better answers it too, and one that was
    stuck revokes, once it goes on, leases that were renewed elsewhere meanwhile (etcd
    issue 15247). It knows no newer lease. Abandoned ones run out.

    etcd counts whole seconds, and grants no less than one and a half of its election
    timeouts (2 s by default); after a change of its leader each lease gets its whole
    term again. All of that is late, which is safe.
    """

    def __init__(self, log: Connection) -> None:
        self._log = log
        # The revision at which this engine wrote the lease's key last, and under which number.
        self._written = (0, 0)
        # When the lease of a configuration was first seen to be over.
        self._over = (0, 0.0)

    def leadership(self) -> Leadership | None:
        """Return the newest leadership; ``expires_in_s`` is no more than a hint."""
        facts, leader, lease = self._read()
        if facts.configuration == 0:
            return None
        replica, address = _read_leader(leader)
        left_s = self._left_s(facts.configuration, lease)
        return Leadership(facts.configuration, replica, address, left_s)

    def take(self, replica: str, address: str, term_s: float) -> int:
        """Begin a new configuration; raises ``LeaseHeld``."""
        keys = self._log.keys
        whose = json.dumps({"replica": replica, "address": address}).encode()
        for _ in range(_ROUNDS):
            facts, leader, lease = self._read()
            if facts.configuration and lease is not None:
                other, _ = _read_leader(leader)
                if other != replica:
                    left_s = self._left_s(facts.configuration, lease)
                    raise LeaseHeld.by(other, left_s)
            old = equal(keys.configuration, str(facts.configuration).encode())
            still = unchanged(keys.lease, revision_of(lease))
            if self._begin(facts.configuration, term_s, [old, still], [put(keys.leader, whose)]):
                return facts.configuration + 1
        raise EngineUnavailable("others take the leadership, one after the other")

    def renew(self, configuration: int, term_s: float) -> int:
        """Let the lease run for a term from now; the revision. Raises ``Deposed``."""
        keys, number = self._log.keys, str(configuration).encode()
        known, revision = self._written
        if known != configuration:
            _, _, lease = self._read()
            revision = revision_of(lease)
        for _ in range(_ROUNDS):
            # A newer one each time: who was faster has a lease that may end after ours.
            lease_id = self._grant(term_s)
            moved = put(keys.lease, number, lease=lease_id)
            # A renewal that was delayed on its way must not end what a later one began.
            conditions = [self._log.current(configuration), unchanged(keys.lease, revision)]
            written = self._log.write(conditions, [moved], get(keys.lease), again=True)
            if written.facts is None:
                self._written = configuration, written.revision
                return written.revision
            checks.require_configuration(configuration, written.facts.configuration)
            (lease,) = written.found
            revision = revision_of(lease)
            if lease is not None and lease.lease == lease_id:
                # It was done, and its reply was lost.
                self._written = configuration, revision
                return written.revision
        raise EngineUnavailable("others renew the lease at the same time")

    def end(self, configuration: int) -> None:
        """Let the lease end now."""
        keys = self._log.keys
        for _ in range(_ROUNDS):
            facts, _, lease = self._read()
            if facts.configuration != configuration or lease is None:
                return
            conditions = [
                self._log.current(configuration),
                unchanged(keys.lease, revision_of(lease)),
            ]
            if self._log.write(conditions, [delete(keys.lease)], again=True).facts is None:
                return
        raise EngineUnavailable("others renew the lease at the same time")

    def next(self, configuration: int, writes: Sequence[pb.RequestOp], term_s: float) -> int:
        """Begin the number after that one, with these writes; raises ``Deposed``."""
        if not self._begin(configuration, term_s, [self._log.current(configuration)], writes):
            facts, _, _ = self._read()
            checks.require_configuration(configuration, facts.configuration)
            raise CorruptLog("the configuration number went back, and was given again")
        return configuration + 1

    def _begin(
        self,
        configuration: int,
        term_s: float,
        compare: Sequence[pb.Compare],
        writes: Sequence[pb.RequestOp],
    ) -> bool:
        """Write the next number with a lease of its own, if all that holds."""
        keys, number = self._log.keys, str(configuration + 1).encode()
        lease_id = self._grant(term_s)
        written = self._log.write(
            compare,
            [
                put(keys.configuration, number),
                put(keys.lease, number, lease=lease_id),
                *writes,
            ],
        )
        if written.facts is None:
            self._written = configuration + 1, written.revision
        return written.facts is None

    def _grant(self, term_s: float) -> int:
        # Up: a leader that counts on its whole term must have it. The lease runs from
        # here, which is before the key is moved and after the leader began to count.
        request = pb.LeaseGrantRequest(ttl=math.ceil(term_s))
        return self._log.client.call(LEASE_GRANT, request, again=True).id

    def _left_s(self, configuration: int, lease: pb.KeyValue | None) -> float:
        if lease is None:
            number, since = self._over
            now = time.monotonic()
            if number != configuration:
                self._over = configuration, since = configuration, now
            return since - now - 0.001
        asked = pb.LeaseTimeToLiveRequest(id=lease.lease)
        found = self._log.client.call(LEASE_TIME_TO_LIVE, asked, again=True)
        # Whole seconds, rounded down.
        return max(_ENDING_S, min(found.ttl + 1.0, float(found.granted_ttl)))

    def _read(self) -> tuple[Facts, pb.KeyValue | None, pb.KeyValue | None]:
        keys = self._log.keys
        facts, found = self._log.read(get(keys.leader), get(keys.lease))
        leader, lease = [one.kvs[0] if one.kvs else None for one in found or ()]
        return facts, leader, lease


def _read_leader(found: pb.KeyValue | None) -> tuple[str, str]:
    if found is None:
        # The log was copied, and nobody has led it here.
        return "", ""
    try:
        told = json.loads(found.value)
        return str(told["replica"]), str(told["address"])
    except (ValueError, KeyError, TypeError):
        raise CorruptLog("the log does not say who leads it") from None
