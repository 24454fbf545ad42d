"""The driver of a replica's rules: threads that carry the core's generators out, step by step.

A rule yields steps, and is sent the result of each; an error is thrown in. The
simulator has a driver of its own, with the same parts around it (``chaos.sim.group.driver``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from _rifl_ground.log import get_logger
from curp._core.steps import ReportFailure, Rest
from curp.log._errors import LogError
from rifl._stores.pending import Pending
from rifl.core._serving.later import Later
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")
_T = TypeVar("_T")
Rule = Generator[Any, Any, Any]
Do = Callable[[Any], Any]


class Bounded(NamedTuple):
    """What came of a step: wait for ``pending``, no longer than so many seconds.

    Sent back is whether it was done by then; ``late`` is raised if not, unless it is None.
    """

    pending: Pending
    seconds: float
    late: Exception | None = None


class Nested(NamedTuple):
    """What came of a step: another rule, whose result is sent back."""

    rule: Rule
    do: Do


class Once(Pending):
    """The end of something, for the threads that wait for it. Any thread may end it, repeatedly."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        super().__init__()
        self._first = threading.Lock()

    def end(self) -> None:
        """Have it be over."""
        if self._first.acquire(blocking=False):
            self.succeed()


class Work(Protocol):
    """A lock that rules go on under, and by which those that rest are woken."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exc: Any) -> Any: ...

    def notify(self) -> None:
        """Wake one of those that rest."""

    def notify_all(self) -> None:
        """Wake all that rest."""


class Loop(Protocol):
    """A rule that is carried out by itself, in a thread for example."""

    def start(self) -> None:
        """Begin."""

    def ended(self) -> Later:
        """Return what is done when it has ended; it is where the loop never began."""


class Driver:
    """Carries rules out where they are called, and begins loops that have threads of their own.

    Each step is done outside of any lock. A result that must be waited for
    (``Later``, ``Bounded``, ``Nested``) is waited for here.
    """

    def clock(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def work(self) -> Work:
        """Return a new lock for loops that rest."""
        return threading.Condition()

    def loop(self, name: str, rule: Rule, do: Do, work: Any, ended: Do) -> Loop:
        """Return a loop, which is not begun yet.

        Its rule goes on with ``work`` held, and rests on it. ``ended``: told, in the loop,
        of the error that ended it, None if there was none.
        """
        return _Thread(name, rule, do, work, ended)


def drive(rule: Generator[Any, Any, _T], do: Do) -> _T:
    """Have ``do`` do each step of a rule; what the rule returns. Blocks.

    What ``do`` raises is thrown into the rule.
    """
    found: _T
    try:
        step = rule.send(None)
        while True:
            try:
                answer = _wait(do(step))
            except Exception as error:  # noqa: BLE001 - the rule's to judge
                step = rule.throw(error)
            else:
                step = rule.send(answer)
    except StopIteration as stop:
        found = stop.value
    return found


def report(step: ReportFailure) -> None:
    """Log what failed, with its traceback if it is none of our errors."""
    if isinstance(step.error, LogError | RiflError):
        _log.warning(step.event, error=str(step.error))
    else:
        _log.error(step.event, exc_info=step.error)


def _wait(answer: Any) -> Any:
    if isinstance(answer, Later):
        return answer.wait()
    if isinstance(answer, Nested):
        return drive(answer.rule, answer.do)
    if isinstance(answer, Bounded):
        if answer.pending.wait_for(answer.seconds):
            answer.pending.wait()
            return True
        if answer.late is not None:
            raise answer.late
        return False
    return answer


class _Joined(Later):
    """That a thread has ended; of no use to itself, and true of one that was never started."""

    __slots__ = ("_thread",)

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def wait(self) -> None:
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError
        yield


class _Thread:
    def __init__(self, name: str, rule: Rule, do: Do, work: threading.Condition, ended: Do) -> None:
        self._rule = rule
        self._do = do
        self._work = work
        self._tell = ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ended(self) -> Later:
        return _Joined(self._thread)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            step = self._go_on(self._rule.send, None)
            while True:
                try:
                    answer = _wait(self._do(step))
                except Exception as failed:  # noqa: BLE001 - the rule's to judge
                    step = self._go_on(self._rule.throw, failed)
                else:
                    step = self._go_on(self._rule.send, answer)
        except StopIteration:
            pass
        except Exception as raised:  # noqa: BLE001 - for its starter
            error = raised
        self._tell(error)

    def _go_on(self, go_on: Callable[[Any], Any], what: Any) -> Any:
        with self._work:
            step = go_on(what)
            while isinstance(step, Rest):
                self._work.wait(step.seconds)
                step = self._rule.send(None)
        return step
