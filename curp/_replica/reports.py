"""The reports of a replica: what it does, and what it saw last, from its memory (DESIGN §7)."""

from __future__ import annotations

from curp._replica.authority import GroupAuthority
from curp._replica.engine import GroupEngine
from curp._replica.group_servicer import GroupServicer
from curp._replica.group_store import GroupStore
from curp._replica.group_view import GroupView
from curp._replica.settings import ReplicaSettings
from curp._replica.watched_engine import EngineWatch
from curp.observer import GroupReport
from curp.v1 import curp_pb2 as pb
from rifl.core._shared.observer import Statistics


class ReplicaReports:
    """The part of ``Replica`` that tells of it. Any thread."""

    settings: ReplicaSettings
    _authority: GroupAuthority
    _engine: GroupEngine
    _group_servicer: GroupServicer
    _picture: GroupView
    _store: GroupStore
    _watch: EngineWatch

    @property
    def role(self) -> str:
        """What it does: "leader", "standby", "recovering" or "stopped"."""
        return self._group_servicer.role

    @property
    def waiting_for(self) -> str:
        """What it waits for, or why it stopped; empty if neither."""
        return self._group_servicer.waiting_for

    def answered(self) -> dict[str, int]:
        """Return how many operations were answered first, or why they were not, so far."""
        return {speed.value: count for speed, count in self._store.speeds.items()}

    def statistics(self) -> Statistics:
        """Count what is held now, without holding calls up. Any thread."""
        clients, unacknowledged, running = self._store.statistics()
        waiting = sum(count() for count in self._engine.waiting)
        return Statistics(
            clients,
            len(self._authority),
            unacknowledged,
            running,
            waiting,
            self._store.held.total,
        )

    def report(self) -> GroupReport:
        """Look at the replica, and at what it saw last of the log. Any thread; never waits."""
        leading = self._group_servicer.leading
        leader = self._store.leader
        listed = self._picture.listed if leading is None else leading.listed
        applied = self._store.state.applied
        tail = max(applied, self._picture.tail) if leader is None else leader.synced
        return GroupReport(
            group=self.settings.group,
            replica=self.settings.name,
            role=self.role,
            configuration=0 if listed is None else listed.configuration,
            applied=applied,
            # While the engine does not answer, nobody knows.
            tail=None if self._watch.trouble() else tail,
            unsynced=0 if leader is None else leader.unsynced,
            wanted=0 if listed is None else len(listed.wanted),
            listed=0 if listed is None else len(listed.witnesses),
            answers=self.answered(),
            serves=self._store.takes_calls(),
            engine_silent_s=self._watch.silent_s(),
        )

    def configuration(self) -> pb.GroupConfiguration:
        """Return who makes up the group, as this replica saw it last. Never waits."""
        return self._group_servicer.configuration()

    def status(self) -> pb.GroupStatusReply:
        """Tell what it does, from memory; on the leader, what its witnesses say, too.

        Those are waited for, a second at most; the log engine is not.
        """
        return self._group_servicer.status()
