"""The server's third shell: it drives the rules of ``rifl.core._serving.serving`` by events.

Like the sync and the aio one it only waits: for the store, for another arrival, for a
handler. What happens when is decided where it is decided for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from chaos.sim.faults import Point
from chaos.sim.loop import Process, Timer
from rifl._server.engine import Engine
from rifl._stores.pending import Pending
from rifl.core._serving.admission import Fetch, Steps, Wait
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.fast_path import Remaining, claim, end, start
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import Records
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.record import CompletionRecord

__all__ = ["Eventual", "Handlers", "Shell", "Task", "serve_fast"]


def serve_fast(
    store: Records, call: Call, policy: MethodPolicy, remaining_s: Remaining = None
) -> Steps:
    """Take the fast path, and the rules from where it hands over: as the aio shell.

    With ``remaining_s`` as the sync one, which waits where the store has yet to answer.
    """
    admitted: Any = claim(store, call, policy, remaining_s)
    if not isinstance(admitted, Attempt):
        admitted = yield from admitted
    if isinstance(admitted, Answer):
        return admitted
    started = start(store, admitted, remaining_s)
    if not isinstance(started, Attempt):
        return (yield from started)
    ended = end(store, started, (yield started), remaining_s)
    if isinstance(ended, CompletionRecord):
        return Answer(ended, ended.outcome)
    return (yield from ended)


class Eventual(Later):
    """Something that a simulated medium will answer; awaited by a ``Task``."""

    __slots__ = ("callback", "done", "error", "result", "timer")

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        # What it ends by if nothing else ends it.
        self.timer: Timer | None = None

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        """Set the result, or the error, once; who waits goes on."""
        if self.done:
            return
        self.done, self.result, self.error = True, result, error
        if self.timer is not None:
            self.timer.cancel()
        if self.callback is not None:
            self.callback()

    def wait(self) -> Any:
        """Nobody blocks here."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        """Yield itself until it is done."""
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.result


class Handlers(Later):
    """Handlers of a batch that run one after another; a ``Task`` leaves its point to them."""

    __slots__ = ()


class Shell:
    """What the tasks of one server process share."""

    def __init__(self, process: Process, engine: Engine) -> None:
        self.process = process
        self.engine = engine
        self.tasks: dict[Task, None] = {}
        # What waits for a call to be at a point; it goes with the process.
        self.aims: dict[Point, list[Callable[[], None]]] = {}
        self.waiting = 0
        engine.waiting.append(lambda: self.waiting)

    def reach(self, point: Point) -> None:
        """Have what waited for a call to be here strike a moment later."""
        if self.aims and point in self.aims:
            for strike in self.aims.pop(point):
                self.process.loop.after(0.0001, strike)


class Task:
    """One generator of rules, driven to its end; then ``done(result, error)``.

    ``handle(attempt, go_on)`` runs a handler and calls ``go_on`` with its result.
    """

    __slots__ = (
        "_deadline",
        "_done",
        "_handle",
        "_shell",
        "_stack",
        "_timer",
        "_wait",
        "at_the_end",
        "attempt",
        "batched",
        "point",
    )

    def __init__(
        self,
        shell: Shell,
        steps: Generator[Any, Any, Any],
        done: Callable[[Any, BaseException | None], None],
        handle: Callable[[Attempt, Callable[[HandlerResult], None], Task], None] | None = None,
        deadline: float | None = None,
        *,
        batched: bool = False,
    ) -> None:
        self._shell = shell
        # The rule, and above it whatever awaits on its behalf.
        self._stack = [steps]
        self._done = done
        self._handle = handle
        self._deadline = deadline
        self._wait: Attempt | None = None
        self._timer: Timer | None = None
        self.attempt: Attempt | None = None
        self.point = Point.CLAIMING
        self.batched = batched
        # What is done when it ends, if its process lives until then.
        self.at_the_end: list[Callable[[], Any]] = []
        shell.tasks[self] = None

    def at(self, point: Point) -> None:
        """Note how far the call is."""
        self.point = point
        self._shell.reach(point)

    def go(self, value: Any = None, error: BaseException | None = None) -> None:
        """Carry on until something has to be waited for."""
        stack = self._stack
        while True:
            steps = stack[-1]
            try:
                step = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as stop:
                value, error = stop.value, None
                if len(stack) == 1:
                    self._end(value, None)
                    return
                stack.pop()
                continue
            except Exception as raised:  # noqa: BLE001 - handed to who asked, or to `done`
                if len(stack) == 1:
                    self._end(None, raised)
                    return
                stack.pop()
                value, error = None, raised
                continue
            value = error = None
            # The abstract classes last: to ask about one of them takes ten times as long.
            if type(step) is Eventual:
                if not step.done:
                    # The generator that yielded it looks at it by itself.
                    step.callback = self.go
                    return
            elif isinstance(step, Attempt):
                self.attempt = step
                self.at(Point.HANDLER)
                self._handle(step, self.go, self)  # type: ignore[misc]
                return
            elif isinstance(step, Wait):
                ended = self._begin_wait(step.attempt)
                if ended is None:
                    return
                value = ended
            elif isinstance(step, Fetch):
                try:
                    value = self._shell.engine.store.fetch(step.call)
                except RiflError as refusal:
                    error = refusal
            elif isinstance(step, Pending):
                self._await()
                if not step.done:
                    step.add_callback(self._pended)
                    return
                value, error = step.result, step.error
            elif isinstance(step, Handlers):
                # It says itself where it is.
                stack.append(step.__await__())
            else:
                self._await()
                several = isinstance(step, AllLater)
                stack.append(_one_by_one(step.replies) if several else step.__await__())

    def _await(self) -> None:
        if self.batched and self.point in (Point.EFFECT, Point.BATCH_PART):
            self.at(Point.BATCH_RECORD)
        elif self.point is Point.EFFECT:
            self.at(Point.RECORD)
        elif self.point is Point.CLAIMING:
            self.at(Point.INTENT)

    def _pended(self, pending: Pending) -> None:
        self._shell.process.after(0.0, self.go, pending.result, pending.error)

    # -- waiting for another arrival -----------------------------------------------------

    def _begin_wait(self, attempt: Attempt) -> bool | None:
        """Return whether it ended, where that is known at once."""
        shell = self._shell
        engine = shell.engine
        if shell.waiting >= engine.max_waiters:
            return False
        if not engine.store.wait(attempt, self._woken):
            return True
        shell.waiting += 1
        self._wait = attempt
        self.at(Point.WAITING)
        now = shell.process.clock()
        remaining = None if self._deadline is None else self._deadline - now
        self._timer = shell.process.after(engine.wait_limit_s(remaining), self._woken)
        return None

    def _woken(self) -> None:
        timer, self._timer = self._timer, None
        if timer is None:
            return
        timer.cancel()
        # As a thread would: later, and after it has left.
        self._shell.process.after(0.0, self._go_on)

    def _go_on(self) -> None:
        attempt, self._wait = self._wait, None
        self._shell.waiting -= 1
        self._shell.engine.store.leave(attempt, self._woken)  # type: ignore[arg-type]
        self.point = Point.CLAIMING
        self.go(attempt.ended)  # type: ignore[union-attr]

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._shell.tasks.pop(self, None)
        for each in self.at_the_end:
            each()
        self._done(value, error)


def _one_by_one(replies: Replies) -> Generator[Any, Any, list[Any]]:
    """Wait for each reply; the result has an error where one raises it."""
    found: list[Any] = []
    for reply in replies:
        try:
            if isinstance(reply, Eventual):
                found.append((yield from reply.__await__()))
            else:
                found.append((yield reply) if isinstance(reply, Later) else reply)
        except Exception as error:  # noqa: BLE001 - its item's; the others go on
            found.append(error)
    return found
