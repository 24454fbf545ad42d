"""The group path of an aio channel: leader and witnesses at once (CURP §3.2.1; DESIGN §7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any

import grpc
import grpc.aio

from curp.client.errors import AttemptError, lost_answer, unknown_refusal
from curp.client.group import GroupKnowledge, GroupView, Statistics
from curp.client.keys import CallerKeys
from curp.client.requests import (
    RECORD_TIMEOUT_S,
    read_leader_answer,
    record_request,
    split_header,
    sync_request,
    synced_number,
    with_number,
)
from curp.core.group_call import GroupCall, LeaderAnswer, Step, SyncVerdict
from curp.core.witness_table import WitnessVerdict
from curp.v1 import curp_pb2
from rifl.client.aio_status import at_hand, finished_status
from rifl.core.outcome import Outcome
from rifl.wire import HEADER_KEY

__all__ = ["AioPath"]

_ASK_TIMEOUT_S = 2.0
_NO_KEYS: frozenset[int] = frozenset()


class AioPath:
    """As ``SyncPath``, on one event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        connect: Callable[[str], grpc.aio.Channel],
        keys: CallerKeys,
    ) -> None:
        self.knowledge = GroupKnowledge()
        self.keys = keys
        self._connect = connect
        self._closed = False
        self._witnesses: dict[str, tuple[grpc.aio.Channel, Any]] = {}
        self._configuration: Any = channel.unary_unary(
            "/curp.v1.Group/Configuration",
            request_serializer=curp_pb2.ConfigurationRequest.SerializeToString,
            response_deserializer=curp_pb2.GroupConfiguration.FromString,
        )
        self.sync: Any = channel.unary_unary(
            "/curp.v1.Group/Sync",
            request_serializer=curp_pb2.SyncRequest.SerializeToString,
            response_deserializer=curp_pb2.SyncReply.FromString,
        )
        # Kept, since a loop does not keep its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self.refresh()

    def unary_unary(self, method: str, inner: Any) -> Any:
        """Return what sends attempts of a method; ``inner`` sends them to the leader alone."""

        def send(body: bytes, *, metadata: Any, timeout: float | None, **rest: Any) -> Any:
            view = self.knowledge.view_for(method)
            parts = split_header(metadata)
            if view is None or parts is None:
                if self.knowledge.view is None:
                    self.refresh()
                return inner(body, metadata=metadata, timeout=timeout, **rest)
            if not self.knowledge.may_record():
                return inner(body, metadata=metadata, timeout=timeout, **rest)
            given, header = parts
            keys = self.keys.find(method, body) if method in view.by_callable else _NO_KEYS
            numbered = with_number(header, view.number, keys)
            entries = (*given, (HEADER_KEY, numbered))
            leader = inner(body, metadata=entries, timeout=timeout, **rest)
            record = record_request(view.number, numbered, method, body)
            return _GroupAioCall(self, view, header, record, leader, timeout)

        return send

    def statistics(self) -> Statistics:
        """Count the answers since the path was made."""
        return self.knowledge.statistics()

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done."""
        if self.knowledge.may_ask(time.monotonic()):
            self.start(self._refresh())

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine in the background, as long as the loop runs."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close the witnesses' channels."""
        self._closed = True
        witnesses, self._witnesses = self._witnesses, {}
        for channel, _ in witnesses.values():
            await channel.close()

    def recorder(self, address: str) -> Any:
        """Return a witness's Record, on raw bytes."""
        found = self._witnesses.get(address)
        if found is None:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            channel = self._connect(address)
            ask: Any = channel.unary_unary(
                "/curp.v1.Witness/Record", response_deserializer=curp_pb2.RecordReply.FromString
            )
            found = self._witnesses[address] = (channel, ask)
        return found[1]

    async def _refresh(self) -> None:
        reply = None
        try:
            request = curp_pb2.ConfigurationRequest()
            reply = await self._configuration(request, timeout=_ASK_TIMEOUT_S)
        except (grpc.RpcError, grpc.aio.UsageError):
            pass
        finally:
            self.knowledge.asked(reply)
        view = self.knowledge.view
        gone = [] if view is None else [at for at in self._witnesses if at not in view.witnesses]
        for address in gone:
            # Their last records fail, and are of no use any more.
            await self._witnesses.pop(address)[0].close()


class _GroupAioCall:
    """One attempt: what gRPC's call is to a rifl channel, which is all that uses it."""

    def __init__(
        self,
        path: AioPath,
        view: GroupView,
        header: bytes,
        record: bytes,
        leader: Any,
        timeout: float | None,
    ) -> None:
        self._path = path
        self._view = view
        self._header = header
        self._leader = leader
        self._timeout = timeout
        self._rule = GroupCall(len(view.witnesses))
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._error: AttemptError | None = None
        self._answer: LeaderAnswer | None = None
        self._asked = False
        self._patience: asyncio.TimerHandle | None = None
        self._unheard = set(view.witnesses)
        self._callbacks: list[Callable[[Any], None]] = []
        limit = RECORD_TIMEOUT_S if timeout is None else min(timeout, RECORD_TIMEOUT_S)
        self._records = [
            path.start(self._record(address, record, limit)) for address in view.witnesses
        ]
        leader.add_done_callback(self._leader_done)

    # Events.

    async def _record(self, address: str, record: bytes, limit: float) -> None:
        verdict = None
        knowledge = self._path.knowledge
        try:
            reply = await self._path.recorder(address)(record, timeout=limit)
            knowledge.heard(address)
            verdict = WitnessVerdict(reply.verdict)
        except grpc.RpcError:
            knowledge.silent(address, self._began)
        except (grpc.aio.UsageError, ValueError):
            pass
        self._unheard.discard(address)
        if not self._over.done():
            self._take(self._rule.witness_answered(verdict))

    def _leader_done(self, leader: Any) -> None:
        if self._over.done():
            return
        status = finished_status(leader)
        if status.code() is grpc.StatusCode.OK:
            number = synced_number(status.trailing_metadata())
            if number is not None and number != self._view.number:
                self._rule.refresh = True
            answer = LeaderAnswer(Outcome.EXECUTED, number is not None)
        else:
            answer = read_leader_answer(status, self._header)
        if answer.outcome is None or answer.outcome is Outcome.NOT_EXECUTED:
            # It may be gone, or lead no more.
            self._rule.refresh = True
        self._answer = answer
        step = self._rule.leader_answered(answer)
        if step is Step.WAIT:
            patience_s = self._path.knowledge.patience_s(time.monotonic() - self._began)
            self._patience = self._loop.call_later(patience_s, self._patience_over)
        self._take(step)

    def _patience_over(self) -> None:
        if not self._over.done():
            for address in self._unheard:
                self._path.knowledge.silent(address, self._began)
            self._take(self._rule.patience_over())

    async def _sync(self) -> None:
        verdict = None
        left_s = None
        if self._timeout is not None:
            left_s = max(self._began + self._timeout - time.monotonic(), 0.0)
        try:
            request = sync_request(self._view.number, self._header)
            reply = await self._path.sync(request, timeout=left_s)
            verdict = SyncVerdict(reply.verdict)
        except (grpc.RpcError, grpc.aio.UsageError, ValueError):
            pass
        if not self._over.done():
            self._take(self._rule.sync_answered(verdict))

    def _take(self, step: Step) -> None:
        if step is Step.WAIT:
            return
        if step is Step.SYNC:
            self._asked = True
            self._path.start(self._sync())
            return
        if step is Step.UNKNOWN:
            self._error = unknown_refusal(finished_status(self._leader))
        elif step is Step.AGAIN:
            self._error = lost_answer("the leader's answer is not known to be in the log")
        elif self._answer is not None and self._answer.outcome is not None:
            self._path.knowledge.count(fast=self._rule.fast, asked=self._asked)
        self._end()

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for record in self._records:
            if record is not asyncio.current_task(self._loop):
                record.cancel()
        if self._rule.refresh:
            self._path.refresh()
        self._over.set_result(None)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    # What the rifl channel asks of a call.

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._over.done():
            try:
                yield from asyncio.shield(self._over).__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._error is not None:
            error = self._error
            raise grpc.aio.AioRpcError(
                error.code(),
                grpc.aio.Metadata(),
                grpc.aio.Metadata(*error.trailing_metadata()),
                error.details(),
            )
        return (yield from self._leader.__await__())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._over.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> bool:
        if self._over.done():
            return False
        if not self._leader.cancel():
            # Its answer is here, but nothing else is any more.
            self._take(Step.AGAIN)
        return True

    def done(self) -> bool:
        return self._over.done()

    async def wait_for_connection(self) -> None:
        await self._leader.wait_for_connection()

    async def code(self) -> Any:
        await self._finished()
        return at_hand(self._leader.code()) if self._error is None else self._error.code()

    async def details(self) -> Any:
        await self._finished()
        return at_hand(self._leader.details()) if self._error is None else self._error.details()

    async def initial_metadata(self) -> Any:
        await self._finished()
        return at_hand(self._leader.initial_metadata()) if self._error is None else ()

    async def trailing_metadata(self) -> Any:
        await self._finished()
        if self._error is not None:
            return self._error.trailing_metadata()
        return at_hand(self._leader.trailing_metadata())

    async def debug_error_string(self) -> Any:
        await self._finished()
        if self._error is not None:
            return self._error.debug_error_string()
        return at_hand(self._leader.debug_error_string())

    async def _finished(self) -> None:
        if not self._over.done():
            await asyncio.shield(self._over)
