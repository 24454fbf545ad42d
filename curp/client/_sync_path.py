"""The group path of a sync channel: leader and witnesses at once (CURP §3.2.1; DESIGN §7)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from _rifl_ground.owned_lock import WITHIN, OwnedLock
from curp._core.pending_records import QuickDuration
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GROUP_RETRY, GroupKnowledge, GroupStatistics
from curp.client._leader_call import SyncLeaderCall
from curp.client._leader_search import SyncLeaderSearch
from curp.client._own_requests import sync_own
from curp.client._record import Record
from curp.client._stubs import ASK_TIMEOUT_S, configuration_stub, sync_stub
from curp.client._sync_multicallable import SyncMultiCallable
from curp.client._sync_recorded_call import SyncRecordedCall, is_ok
from curp.client._sync_records import SyncRecords
from curp.v1 import curp_pb2
from rifl._client.errors import reentrant
from rifl._client.grpc_channels import Connect
from rifl._client.own_metadata import MetadataFunction
from rifl._client.settings import DEFAULT_GROUP_PATH


class SyncWitness:
    """A channel to one witness, and its stream of records."""

    def __init__(
        self,
        channel: grpc.Channel,
        leader: QuickDuration,
        lock: OwnedLock,
        lost: Callable[[SyncRecords], None],
    ) -> None:
        self.channel = channel
        self.records = SyncRecords(channel, leader, lock, lost)

    def close(self) -> None:
        """End the stream, and the channel."""
        self.records.close()
        self.channel.close()


class SyncPath:
    """What attempts of a channel's calls are sent by, once it knows that it has a group.

    ``channel`` reaches the leader; ``connect`` opens a channel to a witness. Any thread.
    """

    # For applications that gave no policy.
    retry = GROUP_RETRY

    def __init__(
        self,
        channel: grpc.Channel,
        connect: Connect[grpc.Channel],
        keys: CallerKeys,
        group_path: str = DEFAULT_GROUP_PATH,
        *,
        metadata: MetadataFunction | None = None,
    ) -> None:
        """Ask for the configuration; what is sent before it is there is synced."""
        own = sync_own(metadata)
        self.knowledge = GroupKnowledge(group_path)
        self.keys = keys
        self._connect = connect
        self._lock = OwnedLock(reentrant)
        self.attempts = OwnedLock(reentrant)
        # Of those to witnesses, as they are opened.
        self._streams = OwnedLock(reentrant)
        self._closed = False
        self._witnesses: dict[str, SyncWitness] = {}
        # Those of which a connection answered nothing: gRPC's channels share theirs.
        self._left: set[str] = set()
        self._configuration: Any = configuration_stub(channel, own)
        self.sync: Any = sync_stub(channel, own)
        self._search = SyncLeaderSearch(channel, self._told, own)
        self._locks = (
            self._lock,
            self.attempts,
            self._streams,
            self.knowledge.lock,
            self._search.lock,
        )
        # Attempts in the background, which can be left.
        self._under_way: weakref.WeakSet[SyncRecordedCall | SyncLeaderCall] = weakref.WeakSet()
        self.refresh()

    def unary_unary(self, method: str, inner: Any) -> Any:
        """Return what sends attempts of a method; ``inner`` sends them to the leader alone."""
        return SyncMultiCallable(self, method, inner)

    def statistics(self) -> GroupStatistics:
        """Count the answers since the path was made."""
        return self.knowledge.statistics()

    def target(self) -> int:
        """Return where calls go now, by its place among the targets."""
        return self._search.target()

    def refuse_within(self) -> None:
        """Raise ``ReentrantCall`` in a thread that is in the middle of another call.

        All that calls need is taken before: a thread of gRPC's that ends a call would wait for
        what the outer one has.
        """
        if any(each.owned for each in self._locks):
            raise reentrant(WITHIN)

    def begun(self, attempt: SyncRecordedCall | SyncLeaderCall) -> None:
        """Take note of an attempt in the background."""
        with self._lock:
            self._under_way.add(attempt)

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done; of all targets, for the leader."""
        if self._search.possible:
            self._search.missed()
            return
        if not self.knowledge.may_ask(time.monotonic()):
            return
        try:
            asked = self._configuration.future(
                curp_pb2.ConfigurationRequest(), timeout=ASK_TIMEOUT_S
            )
        except ValueError:
            # The channel is closed.
            self.knowledge.asked(None)
            return
        asked.add_done_callback(self._asked)

    def close(self) -> None:
        """Close the witnesses' channels."""
        self._search.close()
        with self._lock:
            self._closed = True
            witnesses = list(self._witnesses.values())
            self._witnesses.clear()
        for witness in witnesses:
            witness.close()

    def record(self, address: str, request: bytes) -> Record:
        """Send a record."""
        record = Record(request)
        try:
            witness = self._witness(address)
            if not witness.records.send(record):
                self._leave(address, witness.records)
        except ValueError:
            if self._closed:
                raise
            # The witness was just taken out of the list, and its channel closed.
            record.end(None, sent=False)
        return record

    def _witness(self, address: str) -> SyncWitness:
        found = self._witnesses.get(address)
        if found is None:
            with self._lock:
                if self._closed:
                    raise ValueError("Cannot invoke RPC on closed channel!")
                found = self._witnesses.get(address)
                if found is None:
                    channel = self._connect(address, own=address in self._left)
                    lost = partial(self._lost, address)
                    found = SyncWitness(channel, self.knowledge.leader, self._streams, lost)
                    self._witnesses[address] = found
        return found

    def _leave(self, address: str, records: SyncRecords) -> None:
        """Ask a witness on another connection from now on: this one answers nothing."""
        with self._lock:
            self._left.add(address)
        self._lost(address, records)

    def _lost(self, address: str, records: SyncRecords) -> None:
        """Close the channel to a witness: while it is open, gRPC tries to connect.

        The next record opens another one.
        """
        with self._lock:
            witness = self._witnesses.get(address)
            if witness is None or witness.records is not records:
                return
            del self._witnesses[address]
        witness.close()

    def _asked(self, reply: Any) -> None:
        self._take(reply.result() if is_ok(reply) else None)

    def _told(self, reply: curp_pb2.GroupConfiguration, leader: int | None) -> None:
        """Take what a target says, and its place if it is the leader that was looked for."""
        self._take(reply)
        if leader is None:
            return
        with self._lock:
            under_way = list(self._under_way)
        for attempt in under_way:
            attempt.leave(leader, reply.configuration)

    def _take(self, reply: curp_pb2.GroupConfiguration | None) -> None:
        self.knowledge.asked(reply)
        with self._lock:
            unlisted = self.knowledge.unlisted(self._witnesses)
            # The last records to these witnesses fail, and are of no use any more.
            gone = [self._witnesses.pop(address) for address in unlisted]
            # One that restarted serves again only under a new number.
            for witness in self._witnesses.values():
                witness.records.again()
        for witness in gone:
            witness.close()
