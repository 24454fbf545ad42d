"""The handler of the simulated accounts, at one server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc

from chaos.sim.disk import was_written
from chaos.sim.faults import Point
from chaos.sim.machine import Killed
from chaos.sim.server_life import ServerLife
from chaos.sim.service import ABORTED, RAISED, UNRECORDED, Operation
from chaos.sim.shell import Task
from chaos.sim.store_server import ReplyLost
from rifl._grpc.status import DETAILS_KEY, details_bin
from rifl._wire.labels import OUTCOME_KEY, without_labels
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._shared.record import CompletionRecord, Metadata

__all__ = ["AccountsHandler"]

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


class AccountsHandler:
    """Runs for a time, has its effect on the accounts, and tells its result."""

    def __init__(self, life: ServerLife) -> None:
        self._life = life

    def handle(
        self,
        operation: Operation,
        attempt: Attempt,
        go_on: Callable[[HandlerResult], None],
        task: Task,
    ) -> None:
        """Work for a time, have the effect, work a little more, return."""
        plan = self._life.world.plan(operation.call)
        client_id = attempt.call.client_id
        # A plain call's intent would be there.
        new = self._life.clients.is_new(client_id)
        if new and attempt.policy.kind is not Kind.PLAIN and client_id > 0:
            self._life.shell.reach(Point.FIRST)
        if attempt.policy.kind is Kind.IDEMPOTENT and plan.op == "touch":
            self._life.world.history.begin(self._life.world.loop.now, operation.call)
        self._life.process.after(plan.work_s, self.effect, attempt, operation, go_on, task)

    def effect(
        self,
        attempt: Attempt,
        operation: Operation,
        go_on: Callable[[HandlerResult], None],
        task: Task,
    ) -> None:
        """Have the effect, or its transaction; say when the handler goes on."""
        world = self._life.world
        behaviour = operation.behaviour
        task.at(Point.EFFECT)
        machine = getattr(self._life.opened, "machine", None)
        if machine is not None:
            try:
                record = machine.execute(operation)
            except Killed:
                return
            if world.loop.tracing:
                self._life.trace(f"call {operation.call} is executed: {record.response!r}")
            self._life.process.after(0.0001, go_on, HandlerResult(record))
        elif behaviour == "abort":
            go_on(HandlerResult(ABORTED))
        elif behaviour == "later" or (behaviour == "unsure" and world.accounts.touched(operation)):
            # That nothing happened says nothing of an earlier run, that a crash ended.
            go_on(HandlerResult(UNRECORDED))
        elif behaviour == "forget":
            # Committed without the record; half of these handlers raise then.
            if world.accounts.apply_once(operation, world.loop.now):
                self._unrecorded(attempt, operation.call, task)
            result = HandlerResult(CompletionRecord(response=b""))
            if operation.call % 2:
                result = HandlerResult(RAISED, raised=True)
            go_on(result)
        elif attempt.policy.kind is Kind.ATOMIC:
            self._commit(attempt, operation, go_on)
        elif operation.behaviour == "read":
            go_on(HandlerResult(CompletionRecord(response=world.accounts.read(operation))))
        else:
            answer = world.accounts.apply(operation, world.loop.now)
            if world.loop.tracing:
                self._life.trace(f"call {operation.call} has its effect: {answer!r}")
            if behaviour == "raise":
                result = HandlerResult(forwarding(), raised=True)
            else:
                result = HandlerResult(CompletionRecord(response=answer))
            if attempt.policy.kind is Kind.IDEMPOTENT:
                self._life.shell.reach(Point.REPEATABLE_RAN)
            plan = world.plan(operation.call)
            self._life.process.after(plan.work_s * 0.3, go_on, result)

    def _unrecorded(self, attempt: Attempt, call: int, task: Task) -> None:
        """Note an effect without a record until a store was told of it, or its process is."""
        unrecorded = self._life.world.unrecorded
        unrecorded[call] = None
        if self._life.tracing:
            self._life.trace(f"call {call} has its effect, without its record")
        told = partial(unrecorded.pop, call)
        until = getattr(self._life.opened, "until_told", None)
        if until is None:
            task.at_the_end.append(told)
        else:
            until(attempt, told)

    def _commit(
        self, attempt: Attempt, operation: Operation, go_on: Callable[[HandlerResult], None]
    ) -> None:
        world = self._life.world
        record = CompletionRecord(response=world.accounts.preview(operation))
        try:
            self._life.opened.commit(attempt, record)
        except Exception as error:  # noqa: BLE001 - the handler's own, as gRPC would see it
            if world.loop.tracing:
                self._life.trace(f"call {operation.call} cannot commit: {error}")
            if was_written(error) or isinstance(error, ReplyLost):
                # The effect is where the record is: in the same transaction.
                world.accounts.apply(operation, world.loop.now)
            go_on(HandlerResult(RAISED, raised=True, undone=True))
            return
        world.accounts.apply(operation, world.loop.now)
        if world.loop.tracing:
            self._life.trace(f"call {operation.call} commits: {record.response!r}")
        self._life.process.after(0.0002, go_on, HandlerResult(record))


def forwarding() -> CompletionRecord:
    """Return what is recorded of a handler that raises, and forwards its upstream's metadata."""
    return RAISED._replace(trailing_metadata=without_labels(_UPSTREAMS))
