"""Batches of calls at a server of the simulator: their handlers, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from chaos.sim.accounts_handler import AccountsHandler
from chaos.sim.faults import Point
from chaos.sim.network import Rpc
from chaos.sim.server_life import Context, ServerLife
from chaos.sim.service import decode, policy_of
from chaos.sim.shell import Eventual, Handlers, Task
from rifl._server.batches import Batch
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.batching import BatchAnswer, serve_batch
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.outcome import Outcome

__all__ = ["BatchCalls"]

# Runs a handler and tells its result.
_Handle = Callable[[Attempt, Callable[[HandlerResult], None]], None]


class BatchCalls:
    """Takes the batches of one life of a server."""

    def __init__(self, life: ServerLife, handler: AccountsHandler) -> None:
        self._life = life
        self._handler = handler

    def receive(self, rpc: Rpc) -> None:
        """Take an attempt of a batch."""
        engine = self._life.engine
        try:
            batch = Batch(engine, rpc.method, rpc.request, Context(rpc.metadata))
        except RiflError as error:
            self._life.refuse(rpc, None, None, error)
            return
        policy = policy_of(rpc.method)

        def handle(attempt: Attempt, go_on: Callable[[HandlerResult], None]) -> None:
            operation = decode(attempt.call.request)  # type: ignore[attr-defined]
            self._handler.handle(operation, attempt, go_on, task)

        steps = serve_batch(
            engine.store,
            batch.calls,
            policy,
            run=lambda attempts: _BatchHandlers(rpc, batch, task, attempts, handle),
            fetch=lambda calls: _Fetched(calls, engine.store.fetch),
            gone=batch.gone,
        )
        done = partial(self._served, rpc, batch)
        task = Task(self._life.shell, steps, done, deadline=self._life.deadline(rpc), batched=True)
        task.go()

    def _served(
        self,
        rpc: Rpc,
        batch: Batch,
        answers: list[BatchAnswer] | None,
        error: BaseException | None,
    ) -> None:
        if answers is None:
            self._life.refuse(rpc, None, batch.calls[0], error)
            return
        for call, answer in zip(batch.calls, answers, strict=True):
            operation = decode(call.request)
            if isinstance(answer, Answer):
                self._life.note(rpc, operation, call, answer)
            elif self._life.tracing:
                self._life.trace(f"call {operation.call} in a batch: {answer!r}")
            if isinstance(answer, Answer):
                rpc.refused = rpc.refused or answer.outcome is Outcome.NOT_EXECUTED
        try:
            reply = batch.reply(answers, 0.0)
        except RiflError as refusal:
            self._life.refuse(rpc, None, batch.calls[0], refusal)
            return
        self._life.reply(rpc, reply)
        self._life.shell.reach(Point.ANSWERED)


class _BatchHandlers(Handlers):
    """Runs the handlers of a batch in its order, as a pool thread does.

    When its caller is gone none is begun any more.
    """

    __slots__ = ("_attempts", "_batch", "_handle", "_rpc", "task")

    def __init__(
        self, rpc: Rpc, batch: Batch, task: Task, attempts: Sequence[Attempt], handle: _Handle
    ) -> None:
        self._rpc = rpc
        self._batch = batch
        self._attempts = attempts
        self._handle = handle
        self.task = task

    def wait(self) -> Any:
        """Nobody blocks here."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, list[HandlerResult | None]]:
        """Wait for each of them."""
        results: list[HandlerResult | None] = [None] * len(self._attempts)
        for at, attempt in enumerate(self._attempts):
            if self._rpc.ended and not self._rpc.copy:
                self._batch.leave()
            if self._batch.gone():
                break
            self.task.at(Point.BATCH_PART if at else Point.HANDLER)
            eventual = Eventual()
            self._handle(attempt, eventual.finish)
            results[at] = yield from eventual.__await__()
        return results


class _Fetched(Later):
    """Reads the records of calls of a batch."""

    __slots__ = ("_calls", "_fetch")

    def __init__(self, calls: Sequence[Call], fetch: Callable[[Call], Any]) -> None:
        self._calls = calls
        self._fetch = fetch

    def wait(self) -> Any:
        """Read them."""
        return [self._fetch(call) for call in self._calls]

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Read them; nobody else runs meanwhile."""
        yield from ()
        return [self._fetch(call) for call in self._calls]
