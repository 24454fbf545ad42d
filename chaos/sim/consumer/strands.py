"""Machinery: strands, which stand for the threads of processes, in virtual time.

One runs at a time. What blocks in the product parks here: the world goes on, until an event of the
process wakes it. So code that is written for threads is driven unchanged, and the same seed has it
do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from greenlet import getcurrent, greenlet

from chaos.sim.loop import Process
from sharedlog._core.consumer.asked import Died

__all__ = ["Event", "Strand", "Strands"]

# Virtual time stands still where a wait is shorter.
_LEAST_S = 0.0005


class Strands:
    """Those of one run. All that does not run in a strand is the world's."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        """``broken`` is told what a strand raised that no other waits for."""
        self._broken = broken
        # Those that were begun and are not over, in their order.
        self.alive: dict[Strand, None] = {}
        self._running: Strand | None = None

    @property
    def current(self) -> Strand:
        """The strand that runs."""
        if self._running is None:
            raise AssertionError("no strand runs")
        return self._running

    @property
    def parked(self) -> bool:
        """Whether no strand runs: the world does."""
        return self._running is None

    def begin(
        self, process: Process, work: Callable[[], Any], *, awaited: bool = False
    ) -> Future[Any]:
        """Have something run in a strand of a process, soon; ``awaited``: who asks sees to it."""
        strand = Strand(self, process, work, awaited=awaited)
        self.alive[strand] = None
        process.after(0.0, self.resume, strand)
        return strand.future

    def resume(self, strand: Strand) -> None:
        """Let a strand run until it parks, or is over."""
        if strand not in self.alive:
            return
        before, self._running = self._running, strand
        strand.go_on()
        self._running = before
        if strand.over:
            self.alive.pop(strand, None)
            if strand.error is not None:
                self._broken(f"{strand.process.name}: {strand.error!r}")

    def unwind(self, process: Process) -> None:
        """Have the strands of a process that is dead end where they are."""
        for strand in list(self.alive):
            if strand.process is process:
                strand.dead = True
                self.resume(strand)

    def close(self) -> None:
        """End them all."""
        for strand in list(self.alive):
            strand.process.kill()
            self.unwind(strand.process)


class Strand:
    """One thread of a process."""

    def __init__(
        self, strands: Strands, process: Process, work: Callable[[], Any], *, awaited: bool
    ) -> None:
        self._strands = strands
        self.process = process
        self._work = work
        self._awaited = awaited
        self.future: Future[Any] = _Result(strands)
        # What goes on, and to where it parks.
        self._greenlet = greenlet(self._run)
        self._world = self._greenlet
        self.over = self.dead = False
        self.error: BaseException | None = None
        # Of the last time that it parked: it is woken once.
        self._ticket = 0
        self._found: tuple[Any, BaseException | None] = (None, None)

    def waker(self) -> Callable[[Any, BaseException | None], None]:
        """Return what wakes it when it has parked next, once; an event of its process calls it."""
        self._ticket += 1
        ticket = self._ticket

        def wake(found: Any = None, error: BaseException | None = None) -> None:
            if ticket == self._ticket and not self.over:
                self._ticket += 1
                self._found = found, error
                self._strands.resume(self)

        return wake

    def park(self) -> Any:
        """Wait to be woken; what it was woken with. ``Died``: its process was killed."""
        if not self.dead:
            self._world.switch()
        if self.dead:
            raise Died
        found, error = self._found
        self._found = (None, None)
        if error is not None:
            raise error
        return found

    def check(self) -> None:
        """Raise ``Died`` where the process was killed."""
        if self.dead:
            raise Died

    def sleep(self, seconds: float) -> None:
        """Let so many seconds of the process's clock pass."""
        self.check()
        self.process.after(seconds, self.waker(), None, None)
        self.park()

    def go_on(self) -> None:
        """Let it run until it parks, or is over; the world waits."""
        self._world = getcurrent()
        self._greenlet.parent = self._world
        self._greenlet.switch()

    def _run(self) -> None:
        try:
            if self.dead:
                raise Died
            found = self._work()
        except Died:
            self.dead = True
        except BaseException as error:  # noqa: BLE001 - it is told, or who waits gets it
            if not self.dead:
                self.error = None if self._awaited else error
                self.future.set_exception(error)
        else:
            self.future.set_result(found)
        self.over = True


class Event:
    """What a ``threading.Event`` is to the product, in strands of one process."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands
        self._is_set = False
        self._waiting: list[Callable[[Any, BaseException | None], None]] = []

    def is_set(self) -> bool:
        """See ``threading.Event``."""
        return self._is_set

    def set(self) -> None:
        """See ``threading.Event``; who waits goes on in a moment."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake(True, None)

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Event``."""
        if self._is_set:
            return True
        strand = self._strands.current
        wake = strand.waker()
        process = strand.process

        def later(found: Any, error: BaseException | None) -> None:
            process.after(0.0, wake, found, error)

        self._waiting.append(later)
        if timeout is not None:
            process.after(max(timeout, _LEAST_S), wake, False, None)
        return bool(strand.park())


class _Result(Future[Any]):
    """The result of a strand; a strand that waits for it parks."""

    def __init__(self, strands: Strands) -> None:
        super().__init__()
        self._strands = strands

    def result(self, timeout: float | None = None) -> Any:
        """See ``Future``."""
        self.wait()
        return super().result(0)

    def wait(self) -> None:
        """Park until it is over."""
        if self.done():
            return
        strand = self._strands.current
        wake, process = strand.waker(), strand.process
        self.add_done_callback(lambda _: process.after(0.0, wake, None, None))
        strand.park()

    # As a thread's.
    join = wait
