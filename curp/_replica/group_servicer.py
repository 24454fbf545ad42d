"""The servicer of ``curp.v1.Group`` on a replica (DESIGN §7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Denied
from curp._core.entries import ApplicationVersion
from curp._core.group_call import SyncVerdict
from curp._core.role import Role
from curp._core.witness_list import WitnessList, left_out
from curp._replica.driver import drive
from curp._replica.leading import LeaderLoops
from curp._replica.metadata import TRANSFER_KEY
from curp._replica.parts import Parts
from curp._replica.runner import RoleRunner
from curp._replica.watched_engine import EngineWatch
from curp._wire.poison import poison_case
from curp.v1 import curp_pb2 as pb
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    Deposed,
    InProgress,
    NotLeader,
    NotYours,
    RiflError,
    StoreUnavailable,
)

_log = get_logger("curp.replica")
_MOST_STATUS_S = 1.0


class GroupServicer:
    """Answers for one replica. Any thread; may block."""

    def __init__(
        self,
        parts: Parts,
        watch: EngineWatch,
        replicas: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        """``replicas``: the addresses that are listed in the log engine; must not block."""
        self._replicas = replicas
        self._watch = watch
        self._engine = parts.engine
        self._store = parts.store
        self._services = parts.services
        self._authority = parts.authority
        self._witnesses = parts.witnesses
        self._settings = parts.settings
        self._picture = parts.picture
        # None until the replica is started.
        self.runner: RoleRunner | None = None

    @property
    def leading(self) -> LeaderLoops | None:
        """The leadership, None while there is none here."""
        return None if self.runner is None else self.runner.leading

    @property
    def role(self) -> str:
        """What the replica does, a ``Role``."""
        return Role.STANDBY if self.runner is None else self.runner.role

    @property
    def waiting_for(self) -> str:
        """What it waits for, or why it stopped; empty if neither."""
        if self.runner is None:
            return ""
        leading = self.runner.leading
        return (
            self.runner.waiting_for
            or ("" if leading is None else leading.trouble)
            or self._watch.trouble()
        )

    def check(self, call: Call) -> None:
        """Raise unless the call's token is genuine; ``NotLeader`` on a standby."""
        self._authority.check(call.client_id, call.token, call.peer)

    def configuration(self) -> pb.GroupConfiguration:
        """Return who makes up the group, as this replica saw it last. Never waits."""
        settings, leading, picture = self._settings, self.leading, self._picture
        listed: WitnessList | None
        if leading is not None and self._store.serving:
            leader, listed = settings.address, leading.listed
        else:
            leader, listed = picture.leader(), picture.listed
        found = group_configuration(settings.group, leader, listed)
        found.log = picture.store_id
        found.serves = self._store.takes_calls()
        found.methods.extend(self._services.conflicts())
        found.replicas.extend(
            dict.fromkeys((*settings.replicas, *self._replicas(), settings.address))
        )
        return found

    def sync(self, configuration: int, call: Call, timeout_s: float) -> int:
        """Wait until a call's entry is in the log (invariant 9)."""
        if self.leading is None or not self._store.takes_calls():
            raise self._store.not_leader()
        until = time.monotonic() + timeout_s
        while not isinstance(found := self._store.call_synced(configuration, call), SyncVerdict):
            ended = threading.Event()
            found.add_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
            if not ended.wait(max(0.0, until - time.monotonic())):
                raise InProgress("the call is not in the log yet")
        return found

    def status(self) -> pb.GroupStatusReply:
        """Tell what the replica does, from memory; the leader asks its witnesses, too.

        Waits for these a second at most, and for the log engine only to begin, no longer.
        """
        if self.runner is not None:
            # One that was just started has nothing to tell from yet.
            self._picture.begun.wait(_MOST_STATUS_S)
        settings, leader, leading = self._settings, self._store.leader, self.leading
        clients, _, _ = self._store.statistics()
        applied = self._store.state.applied
        reply = pb.GroupStatusReply(
            configuration=self.configuration(),
            replica=settings.name,
            role=self.role,
            applied=applied,
            tail=max(applied, self._picture.tail) if leader is None else leader.synced,
            unsynced=0 if leader is None else leader.unsynced,
            clients=clients,
            waiting_for=self.waiting_for,
            application_version=settings.application_version,
            active_version=self._store.state.version,
            engine=self._watch.trouble(),
            warnings=() if leading is None else leading.warnings(),
            poison=[poison_case(case) for case in self._store.ledger.cases],
        )
        if leading is not None:
            reply.wanted_witnesses.extend(leading.listed.wanted)
            for address in left_out(leading.listed):
                why = self._witnesses.start_refusal(address)
                reply.left_out.add(witness=address, why=why)
        listed = list(reply.configuration.witnesses) if self.role == Role.LEADER else []
        said = self._witnesses.statuses(
            listed, min(_MOST_STATUS_S, settings.tuning.witness_timeout_s)
        )
        for address in listed:
            reply.witnesses.append(
                said.get(address) or pb.WitnessStatusReply(group=settings.group, mode="unreachable")
            )
        return reply

    def change_witnesses(
        self, witnesses: Sequence[str], configuration: int, *, by_member: bool = True
    ) -> pb.GroupConfiguration:
        """Put another witness list in force (invariant 11).

        ``by_member``: the caller showed the group's token, or is this process. Only it names new
        witnesses, since each is told the secrets that sign clients' tokens.
        """
        leading = self._require_leading()
        known = {*self._settings.witnesses, *leading.listed.wanted}
        new = [witness for witness in witnesses if witness not in known]
        if new and not by_member:
            raise NotYours(
                f"the group was never told of the witness {new[0]}, which would learn the secrets "
                "that sign clients' tokens, and the group has no token: give its processes one "
                f"(--group-token-file), or start its replicas with --witness {new[0]}",
                Denied("group_token", "missing"),
            )
        if len(set(witnesses)) != len(witnesses):
            raise RiflError("the same witness is given twice")
        try:
            changing = leading.changing_witnesses(witnesses, configuration)
            drive(changing.rule, changing.do)
        except RiflError:
            raise
        except Exception as error:
            raise Deposed(f"the list may have changed: {error}") from error
        return self.configuration()

    def transfer(self, replica: str) -> None:
        """Hand the leadership over, to a replica by name or to any other."""
        leading = self._require_leading()
        if replica == self._settings.name or self.runner is None:
            return
        try:
            self._engine.put_metadata(
                {TRANSFER_KEY: replica.encode() or None}, configuration=leading.configuration
            )
        except Exception as error:
            raise StoreUnavailable(f"the transfer was not begun: {error}") from error
        self.runner.hand_over()

    def finalize_upgrade(self, version: int, who: str) -> int:
        """Make this leader's application version the active one, which is returned."""
        self._require_leading()
        own = self._settings.application_version
        if version != own:
            raise RiflError(f"the leader is of application version {own}, not {version}")
        if self._store.state.version < own:
            self._store.log(ApplicationVersion(own, who)).wait()
            _log.info("upgrade_finalized", replica=self._settings.name, version=own, who=who)
        return own

    def end_session(self, name: str) -> list[int]:
        """End the open sessions of a name; return their ids."""
        self._require_leading()
        return self._authority.end_session(name)

    def rotate_secret(self) -> int:
        """Make a new secret for client tokens; return its key id."""
        self._require_leading()
        self._authority.rotate_secret()
        return self._store.state.secrets[0][0]

    def _require_leading(self) -> LeaderLoops:
        leading = self.leading
        if leading is None or not self._store.serving:
            raise NotLeader(*self._store.not_leader().args)
        return leading


def group_configuration(
    group: str, leader: str, listed: WitnessList | None
) -> pb.GroupConfiguration:
    """Return a configuration by which calls may be sent: its list's, if that is served."""
    found = pb.GroupConfiguration(group=group, leader=leader)
    if listed is not None and listed.serving:
        found.configuration = listed.configuration
        found.witnesses.extend(listed.witnesses)
    return found
