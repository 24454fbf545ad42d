"""A batch of calls at a server of the simulator: its handlers, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from chaos.sim.faults import Point
from chaos.sim.network import Rpc
from chaos.sim.shell import Eventual, Handlers, Task
from rifl._server.batches import Batch
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.serving import HandlerResult
from rifl.core._shared.call import Call

__all__ = ["BatchHandlers", "Fetched"]

# Runs a handler and tells its result.
_Handle = Callable[[Attempt, Callable[[HandlerResult], None]], None]


class BatchHandlers(Handlers):
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


class Fetched(Later):
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
