"""The group path of an aio channel: leader and witnesses at once (CURP §3.2.1; DESIGN §7)."""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio

from curp.client._aio_recorded_call import AioRecordedCall
from curp.client._aio_records import AioRecords
from curp.client._attempt import LeaderOnly, begin
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GROUP_RETRY, GroupKnowledge, GroupStatistics
from curp.client._leader_call import AioLeaderCall
from curp.client._leader_search import AioLeaderSearch
from curp.client._messages import split_header
from curp.client._own_requests import aio_own
from curp.client._record import Record
from curp.client._stubs import ASK_TIMEOUT_S, configuration_stub, sync_stub
from curp.v1 import curp_pb2
from rifl._client.aio_status import at_hand
from rifl._client.grpc_channels import Connect
from rifl._client.own_metadata import MetadataFunction
from rifl._client.settings import DEFAULT_GROUP_PATH


class AioPath:
    """As ``SyncPath``, on one event loop."""

    # For applications that gave no policy.
    retry = GROUP_RETRY

    def __init__(
        self,
        channel: grpc.aio.Channel,
        connect: Connect[grpc.aio.Channel],
        keys: CallerKeys,
        group_path: str = DEFAULT_GROUP_PATH,
        clock: Callable[[], float] = time.monotonic,
        *,
        metadata: MetadataFunction | None = None,
    ) -> None:
        """Ask for the configuration; what is sent before it is there is synced."""
        own = aio_own(metadata)
        self.knowledge = GroupKnowledge(group_path, clock=clock)
        self.keys = keys
        self._connect = connect
        self._closed = False
        self._witnesses: dict[str, tuple[grpc.aio.Channel, AioRecords]] = {}
        # Those of which a connection answered nothing: gRPC's channels share theirs.
        self._left: set[str] = set()
        self._configuration: Any = configuration_stub(channel, own)
        self.sync: Any = sync_stub(channel, own)
        # Kept, since a loop does not keep its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._search = AioLeaderSearch(channel, self._told, own, self.start)
        self._under_way: weakref.WeakSet[AioRecordedCall | AioLeaderCall] = weakref.WeakSet()
        self.refresh()

    def unary_unary(self, method: str, inner: Any) -> Any:
        """Return what sends attempts of a method; ``inner`` sends them to the leader alone."""

        def send(body: bytes, *, metadata: Any, timeout: float | None, **rest: Any) -> Any:
            begun = begin(self, method, body, metadata, timeout)
            target = self._search.target()
            if begun is None or isinstance(begun, LeaderOnly):
                leader = inner(body, metadata=metadata, timeout=timeout, **rest)
                if begun is not None:
                    leader.add_done_callback(lambda done: begun.end(answered=_is_ok(done)))
                if split_header(metadata) is None:
                    # It has no identity to be sent elsewhere with.
                    return leader
                alone = AioLeaderCall(leader, target, self.knowledge.number)
                self._under_way.add(alone)
                return alone
            attempt, given = begun
            leader = inner(body, metadata=(*given, attempt.entry), timeout=timeout, **rest)
            call = AioRecordedCall(self, attempt, leader, target)
            self._under_way.add(call)
            return call

        return send

    def statistics(self) -> GroupStatistics:
        """Count the answers since the path was made."""
        return self.knowledge.statistics()

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done; of all targets, for the leader."""
        if self._search.possible:
            self._search.missed()
        elif self.knowledge.may_ask(self.knowledge.clock()):
            contextvars.Context().run(self.start, self._refresh())

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine in the background, as long as the loop runs."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close the witnesses' channels."""
        self._closed = True
        self._search.close()
        witnesses, self._witnesses = self._witnesses, {}
        for channel, records in witnesses.values():
            records.close()
            await channel.close()

    def record(self, address: str, request: bytes) -> Record:
        """Send a record."""
        record = Record(request)
        try:
            records = self._records(address)
            if not records.send(record):
                self._leave(address, records)
        except (grpc.aio.UsageError, ValueError):
            # The channel is closed.
            record.end(None, sent=False)
        return record

    def _records(self, address: str) -> AioRecords:
        found = self._witnesses.get(address)
        if found is None:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            channel = self._connect(address, own=address in self._left)
            records = AioRecords(channel, self.knowledge.leader, partial(self._lost, address))
            found = (channel, records)
            self._witnesses[address] = found
        return found[1]

    def _leave(self, address: str, records: AioRecords) -> None:
        """Ask a witness on another connection from now on: this one answers nothing."""
        self._left.add(address)
        self._lost(address, records)

    def _lost(self, address: str, records: AioRecords) -> None:
        """As ``SyncPath._lost``."""
        channel, found = self._witnesses.get(address, (None, None))
        if channel is None or found is not records:
            return
        del self._witnesses[address]
        records.close()
        self.start(channel.close())

    async def _refresh(self) -> None:
        reply = None
        try:
            request = curp_pb2.ConfigurationRequest()
            reply = await self._configuration(request, timeout=ASK_TIMEOUT_S)
        except (grpc.RpcError, grpc.aio.UsageError):
            pass
        finally:
            self.knowledge.asked(reply)
        await self._prune()

    def _told(self, reply: curp_pb2.GroupConfiguration, leader: int | None) -> None:
        """Take what a target says, and its place if it is the leader that was looked for."""
        self.knowledge.asked(reply)
        self.start(self._prune())
        if leader is not None:
            for call in list(self._under_way):
                call.leave(leader, reply.configuration)

    async def _prune(self) -> None:
        for address in self.knowledge.unlisted(self._witnesses):
            # The last records to these witnesses fail, and are of no use any more.
            channel, records = self._witnesses.pop(address)
            records.close()
            await channel.close()
        for _, records in self._witnesses.values():
            # One that restarted serves again only under a new number.
            records.again()


def _is_ok(call: Any) -> bool:
    return not call.cancelled() and at_hand(call.code()) is grpc.StatusCode.OK
