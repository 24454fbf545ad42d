"""Unary calls at a server of the simulator, and questions what became of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chaos.sim.accounts_handler import AccountsHandler
from chaos.sim.faults import Point
from chaos.sim.network import Rpc
from chaos.sim.server_life import Context, ServerLife
from chaos.sim.service import RAISED, Operation, decode, policy_of
from chaos.sim.shell import Task, serve_fast
from rifl._server.outcomes_service import RESOLUTION, resolution_call, resolution_reply
from rifl._server.reply import Reply
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._serving.serving import resolve
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.outcome import Outcome

__all__ = ["UnaryCalls"]

_REPEATABLE = "/sim.Accounts/Touch"


class UnaryCalls:
    """Takes the unary calls of one life of a server."""

    def __init__(self, life: ServerLife, handler: AccountsHandler) -> None:
        self._life = life
        self._handler = handler

    def receive(self, rpc: Rpc) -> None:
        """Take an attempt."""
        context = Context(rpc.metadata)
        operation = decode(rpc.request)
        try:
            call = self._life.engine.arrive(rpc.method, rpc.request, context)
        except RiflError as error:
            self._life.refuse(rpc, operation, None, error)
            return
        policy = policy_of(rpc.method)
        Task(
            self._life.shell,
            serve_fast(self._life.engine.store, call, policy),
            partial(self._served, rpc, operation, call),
            partial(self._handle, rpc, operation),
            self._life.deadline(rpc),
        ).go()

    def _handle(
        self,
        rpc: Rpc,
        operation: Operation,
        attempt: Attempt,
        go_on: Callable[[HandlerResult], None],
        task: Task,
    ) -> None:
        if rpc.original is not None and rpc.original.refused and attempt.policy.kind is Kind.ATOMIC:
            # A proxy's copy that waited, or asked, while the original was rolled back: nobody
            # promises that it does not run (see ``network``).
            go_on(HandlerResult(RAISED, raised=True, undone=True))
            return
        self._handler.handle(operation, attempt, go_on, task)

    def resolve(self, rpc: Rpc) -> None:
        """Take a question what became of a call."""
        context = Context(rpc.metadata)
        try:
            call = resolution_call(self._life.engine, rpc.request, context)
        except RiflError as error:
            self._life.refuse(rpc, None, None, error)
            return
        Task(
            self._life.shell,
            resolve(self._life.engine.store, call, RESOLUTION),
            partial(self._resolved, rpc, call),
            deadline=self._life.deadline(rpc),
        ).go()

    def _served(
        self,
        rpc: Rpc,
        operation: Operation,
        call: Call,
        answer: Answer | None,
        error: BaseException | None,
    ) -> None:
        if answer is None:
            self._life.refuse(rpc, operation, call, error)
            return
        self._life.note(rpc, operation, call, answer)
        rpc.refused = answer.outcome is Outcome.NOT_EXECUTED
        status = Reply(call, answer).status()
        self._life.send(rpc, status)
        self._life.shell.reach(Point.ANSWERED)
        if rpc.method == _REPEATABLE:
            self._life.shell.reach(Point.REPEATABLE_ANSWERED)

    def _resolved(
        self, rpc: Rpc, call: Call, answer: Answer | None, error: BaseException | None
    ) -> None:
        if answer is None:
            self._life.refuse(rpc, None, call, error)
        else:
            self._life.reply(rpc, resolution_reply(answer).SerializeToString())
