"""Model of the world: the application's handlers, coroutines over the simulated accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NoReturn

import grpc

from chaos.sim.disk import was_written
from chaos.sim.faults import Point
from chaos.sim.machine import Killed
from chaos.sim.network import Rpc
from chaos.sim.server_life import ServerLife
from chaos.sim.service import ABORTED, UNRECORDED, Operation, decode
from chaos.sim.shell import SERVED, Served
from chaos.sim.store_server import ReplyLost
from rifl._grpc.codes import STATUS_CODES
from rifl._grpc.status import DETAILS_KEY, details_bin
from rifl._wire.labels import OUTCOME_KEY
from rifl.core._serving.policy import Kind
from rifl.core._shared.record import CompletionRecord, Metadata

__all__ = ["AccountsHandler", "Raised"]

# What an upstream told the handler of a call of its own, under another identity.
_UPSTREAMS: Metadata = (
    (
        DETAILS_KEY,
        details_bin(
            grpc.StatusCode.FAILED_PRECONDITION, "LEASE_EXPIRED", "the upstream's", {"rpc": "7/7"}
        ),
    ),
    (OUTCOME_KEY, "unknown"),
)


class Raised(Exception):
    """What handlers raise that fail as planned."""


class AccountsHandler:
    """Runs for a time, has its effect on the accounts, and answers."""

    def __init__(self, life: ServerLife) -> None:
        self._life = life

    async def handle(self, request: bytes, context: Any) -> bytes:
        """Work for a time, have the effect, work a little more, return."""
        served, world, attempt = SERVED.get(), self._life.world, context.rifl_attempt
        operation = decode(request)
        plan = world.plan(operation.call)
        served.runs(attempt)
        if _rolled_back(served.rpc) and attempt.policy.kind is Kind.ATOMIC:
            # A proxy's copy that waited, or asked, while the original was rolled back: rifl does
            # not promise that it never runs (see ``network``).
            context.rifl_undone = True
            raise Raised
        client_id = attempt.call.client_id
        # A plain call's intent would be there.
        new = self._life.clients.is_new(client_id)
        if new and attempt.policy.kind is not Kind.PLAIN and client_id > 0:
            self._life.shell.reach(Point.FIRST)
        if attempt.policy.kind is Kind.IDEMPOTENT and plan.op == "touch":
            world.history.begin(world.loop.now, operation.call)
        await asyncio.sleep(plan.work_s)
        answer = await self._effect(served, context, operation)
        if served.rpc.kind == "batch" and served.rpc.ended and not served.rpc.copy:
            # Its caller is gone, and gRPC says so.
            served.task.cancel()
            await asyncio.sleep(0)
        return answer

    async def read(self, requests: Any, context: Any) -> bytes:
        """Read a request stream, and have its effect: that of all its messages together."""
        served, world, attempt = SERVED.get(), self._life.world, context.rifl_attempt
        served.runs(attempt)
        first: Operation | None = None
        answer: bytes | None = None
        amount = 0
        try:
            async for data in requests:
                part = decode(data)
                amount += part.amount
                if first is not None:
                    continue
                first = part
                if attempt.policy.kind is Kind.IDEMPOTENT:
                    world.history.begin(world.loop.now, part.call)
                if part.behaviour == "abort":
                    await _end(context, ABORTED)
                if part.behaviour == "early":
                    answer = world.accounts.apply(part, world.loop.now)
        except grpc.RpcError:
            rpc: Any = served.rpc
            if rpc.broken_by is not None:
                world.coverage.hit(rpc.broken_by, Point.BROKEN_OFF)
            if world.loop.tracing:
                self._life.trace(f"call {rpc.number} breaks off under its handler")
            raise
        if first is None:
            await _end(context, ABORTED)
        if served.cut:
            world.history.half(world.loop.now, first.call)
        served.at(Point.HANDLER)
        await asyncio.sleep(world.plan(first.call).work_s)
        if answer is not None:
            return answer
        return await self._effect(served, context, first._replace(amount=amount))

    async def tell(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Make the messages of a response stream; behind some of them is the effect."""
        served, world, attempt = SERVED.get(), self._life.world, context.rifl_attempt
        operation = decode(request)
        plan = world.plan(operation.call)
        served.runs(attempt)
        served.made = []
        again = attempt.policy.kind is Kind.IDEMPOTENT
        if again:
            world.history.begin(world.loop.now, operation.call)
        await asyncio.sleep(plan.work_s)
        if operation.behaviour == "later":
            await _end(context, UNRECORDED)
        version, total = 0, 0
        acts_at = operation.call % plan.messages
        for place in range(plan.messages):
            if place == acts_at:
                if operation.behaviour == "abort":
                    await _end(context, ABORTED)
                answer = world.accounts.apply(operation, world.loop.now)
                if operation.behaviour == "raise":
                    raise Raised
                version, total = (int(each) for each in answer.split())
            if again:
                # What may run again has to make the same messages again.
                version, total = 0, operation.amount
            data = b"%d %d %d" % (place, version, total)
            served.made.append(data)
            yield data
            if place + 1 < plan.messages:
                served.at(Point.HALF_MADE)
                if plan.pace_s:
                    await asyncio.sleep(plan.pace_s)
        served.at(Point.EFFECT)

    async def _effect(self, served: Served, context: Any, operation: Operation) -> bytes:
        """Have the effect, or its transaction; what the handler returns, unless it raises."""
        life, world, attempt = self._life, self._life.world, context.rifl_attempt
        behaviour = operation.behaviour
        served.at(Point.EFFECT)
        machine = getattr(life.opened, "machine", None)
        if machine is not None:
            return await self._execute(machine, context, operation)
        if behaviour == "abort":
            await _end(context, ABORTED)
        if behaviour == "later" or (behaviour == "unsure" and world.accounts.touched(operation)):
            # That nothing happened says nothing of an earlier run, that a crash ended.
            await _end(context, UNRECORDED)
        if behaviour == "forget":
            # Committed without the record; half of these handlers raise then.
            if world.accounts.apply_once(operation, world.loop.now):
                self._unrecorded(served, operation.call)
            if operation.call % 2:
                raise Raised
            return b""
        if attempt.policy.kind is Kind.ATOMIC:
            return await self._commit(context, operation)
        if behaviour == "read":
            return world.accounts.read(operation)
        answer = world.accounts.apply(operation, world.loop.now)
        if world.loop.tracing:
            life.trace(f"call {operation.call} has its effect: {answer!r}")
        if attempt.policy.kind is Kind.IDEMPOTENT:
            life.shell.reach(Point.REPEATABLE_RAN)
        await asyncio.sleep(world.plan(operation.call).work_s * 0.3)
        if behaviour == "raise":
            # It forwards its upstream's metadata.
            context.set_trailing_metadata(_UPSTREAMS)
            raise Raised
        return answer

    async def _execute(self, machine: Any, context: Any, operation: Operation) -> bytes:
        try:
            record: CompletionRecord = machine.execute(operation)
        except Killed:
            # It is dead.
            never: asyncio.Future[bytes] = self._life.events.create_future()
            return await never
        if self._life.tracing:
            self._life.trace(f"call {operation.call} is executed: {record.response!r}")
        await asyncio.sleep(0.0001)
        context.set_trailing_metadata(record.trailing_metadata)
        if record.code:
            await _end(context, record)
        return record.response or b""

    def _unrecorded(self, served: Served, call: int) -> None:
        """Note an effect without a record until a store was told of it, or its process is."""
        unrecorded = self._life.world.unrecorded
        unrecorded[call] = None
        if self._life.tracing:
            self._life.trace(f"call {call} has its effect, without its record")
        told = partial(unrecorded.pop, call)
        until = getattr(self._life.opened, "until_told", None)
        if until is None:
            served.at_the_end.append(told)
        else:
            until(served.attempt, told)

    async def _commit(self, context: Any, operation: Operation) -> bytes:
        life, world = self._life, self._life.world
        answer = world.accounts.preview(operation)
        try:
            life.opened.commit(context, answer)
        except Exception as error:
            if world.loop.tracing:
                life.trace(f"call {operation.call} cannot commit: {error}")
            if was_written(error) or isinstance(error, ReplyLost):
                # The effect is where the record is: in the same transaction.
                world.accounts.apply(operation, world.loop.now)
            context.rifl_undone = True
            raise Raised from error
        world.accounts.apply(operation, world.loop.now)
        if world.loop.tracing:
            life.trace(f"call {operation.call} commits: {answer!r}")
        await asyncio.sleep(0.0002)
        return answer


def _rolled_back(rpc: Rpc) -> bool:
    return rpc.original is not None and rpc.original.refused


async def _end(context: Any, record: CompletionRecord) -> NoReturn:
    await context.abort(STATUS_CODES[record.code], record.details)
    raise AssertionError("it raises")
