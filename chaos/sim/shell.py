"""Driver of the product's ``AioShell``, which serves calls on an event loop in virtual time.

It notes how far each call is, for faults to strike there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from chaos.sim.faults import Point
from chaos.sim.loop import Process
from chaos.sim.network import Rpc
from rifl._server.aio import AioShell
from rifl._server.call_engine import CallEngine
from rifl.core._serving.admission import Fetch, Wait
from rifl.core._serving.client_entry import Attempt

__all__ = ["SERVED", "Served", "Shell"]

# Of what the shells wait for by themselves: it is no step of one call.
_OF_SHELLS = ("rifl._server.aio_batches", "rifl._server.aio_streams")


class Shell(AioShell):
    """The shell of one life of a server, and the requests in flight there."""

    def __init__(self, process: Process, engine: CallEngine) -> None:
        super().__init__(engine)
        self.process = process
        self.served: dict[Served, None] = {}
        # What waits for a call to be at a point; it goes with the process.
        self.aims: dict[Point, list[Callable[[], None]]] = {}

    def reach(self, point: Point) -> None:
        """Have what waited for a call to be here strike a moment later."""
        if self.aims and point in self.aims:
            for strike in self.aims.pop(point):
                self.process.loop.after(0.0001, strike)

    async def drive(self, steps: Any, *given: Any, **named: Any) -> Any:
        """See ``AioShell``."""
        noted: Any = _Noted(steps, SERVED.get())
        return await super().drive(noted, *given, **named)

    async def shielded(self, work: Any, context: Any) -> Any:
        """See ``AioShell``."""
        return await super().shielded(SERVED.get().part(work), context)

    def forget(self) -> None:
        """End what the process left, when the run is over and judged."""
        for task in list(self._executing):
            with suppress(RuntimeError, StopIteration):
                task.get_coro().close()
        self._executing.clear()


class Served:
    """A request at a server, until all that it has begun is over."""

    def __init__(self, shell: Shell, rpc: Rpc) -> None:
        self.shell = shell
        self.rpc = rpc
        self.point = Point.CLAIMING
        # The attempt whose handler began last, and how many have begun.
        self.attempt: Attempt | None = None
        self.begun = 0
        # What the handler of a response stream has made, and whether a request stream broke off.
        self.made: list[bytes] = []
        self.cut = False
        # Its handler's answer leaves, now or again.
        self.answered = False
        # What gRPC cancels.
        self.task: Any = None
        # What is done when it ends, if its process lives until then.
        self.at_the_end: list[Callable[[], Any]] = []
        self._batched = rpc.kind == "batch"
        self._parts = 0
        shell.served[self] = None

    def at(self, point: Point) -> None:
        """Note how far it is."""
        self.point = point
        self.shell.reach(point)

    def runs(self, attempt: Attempt) -> None:
        """Note that a handler begins."""
        self.attempt = attempt
        self.at(Point.BATCH_PART if self.begun else Point.HANDLER)
        self.begun += 1

    def awaits(self) -> None:
        """Note that it waits for a store."""
        if self._batched and self.point in (Point.EFFECT, Point.BATCH_PART):
            self.at(Point.BATCH_RECORD)
        elif self.point is Point.EFFECT:
            self.at(Point.RECORD)
        elif self.point is Point.CLAIMING:
            self.at(Point.INTENT)

    async def part(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do a part of it: its shell goes on with some when it is cancelled."""
        self._parts += 1
        try:
            return await work
        finally:
            self._parts -= 1
            self.left()

    def left(self) -> None:
        """Note that a part of it is over, or was not begun."""
        if not self._parts and self.shell.process.alive:
            self.shell.served.pop(self, None)
            # Once: a task that is cancelled behind its last part says so, too.
            while self.at_the_end:
                self.at_the_end.pop(0)()


# The request that the running task serves.
SERVED: ContextVar[Served] = ContextVar("served")


class _Noted:
    """The steps of a rule, noted as they are taken."""

    def __init__(self, steps: Generator[Any, Any, Any], served: Served) -> None:
        self._steps = steps
        self._served = served

    def send(self, value: Any) -> Any:
        """See ``Generator``."""
        if self._served.point is Point.WAITING:
            self._served.point = Point.CLAIMING
        return self._note(self._steps.send(value))

    def throw(self, error: Exception) -> Any:
        """See ``Generator``."""
        return self._note(self._steps.throw(error))

    def _note(self, step: Any) -> Any:
        if isinstance(step, Wait):
            self._served.at(Point.WAITING)
        elif not isinstance(step, Attempt | Fetch) and type(step).__module__ not in _OF_SHELLS:
            self._served.awaits()
        return step
