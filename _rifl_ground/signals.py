"""Signals that a process takes while it serves, and what they do in its children (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from _rifl_ground.system import at_forks

# What signals are to do in a forked child, by number: what they did before this process served.
_in_children: dict[signal.Signals, Any] = {}
# Who on a loop is told of a signal: a loop has room for one.
_told: dict[tuple[asyncio.AbstractEventLoop, signal.Signals], list[Callable[[], None]]] = {}


@contextlib.contextmanager
def taken_signals(signals: Iterable[signal.Signals]) -> Iterator[queue.SimpleQueue[int]]:
    """Put signals that come into a queue, in the main thread; afterwards they do what they did.

    In children that are forked meanwhile they do so at once.
    """
    # Its function runs between any two steps of the main thread, so it takes no lock that this
    # thread may hold, such as an event's.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle(number: int, frame: Any) -> None:
        del frame
        came.put(number)

    before = {number: signal.signal(number, handle) for number in signals}
    _in_children.update(before)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            _in_children.pop(number, None)


@contextlib.contextmanager
def told_at(signals: Iterable[signal.Signals], told: Callable[[], None]) -> Iterator[None]:
    """Have a function called, in a thread of its own, each time that one of these comes.

    It may take locks, as an event's ``set`` does, which the main thread may hold just then.
    """
    with taken_signals(signals) as came:

        def tell_all() -> None:
            while came.get():
                told()

        thread = threading.Thread(target=tell_all, name="rifl-signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            came.put(0)
            thread.join()


@contextlib.contextmanager
def until_signal(stopped: threading.Event | None = None) -> Iterator[threading.Event]:
    """Have SIGINT and SIGTERM set the event; afterwards they do what they did before."""
    stopped = stopped or threading.Event()
    with told_at((signal.SIGINT, signal.SIGTERM), stopped.set):
        yield stopped


def tell(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[], None]
) -> None:
    """Have a function called at a signal, beside those that already are."""
    before = signal.getsignal(number)
    told = _told.setdefault((loop, number), [])

    def tell_all() -> None:
        for each in tuple(told):
            each()

    loop.add_signal_handler(number, tell_all)
    if not told:
        # As the loop has it, when it is told of the signal no more.
        by_default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        _in_children[number] = signal.SIG_IGN if before == signal.SIG_IGN else by_default
    told.append(handle)


def tell_no_more(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[], None]
) -> None:
    """Have it called no more; without any the signal does what it did."""
    told = _told.get((loop, number), [])
    if handle in told:
        told.remove(handle)
    if not told:
        _told.pop((loop, number), None)
        loop.remove_signal_handler(number)
        _in_children.pop(number, None)


class _Forking(threading.local):
    """A thread that forks: the signals that it had blocked before."""

    mask: Any = None


_forking = _Forking()


def _forks() -> None:
    """Keep a signal back that comes for the child before it is told what to do with it."""
    if _in_children:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _in_children)


def _has_forked() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        _forking.mask = None


def _forked() -> None:
    """In a forked child: have signals do what they did before its parent served.

    The child has no server to stop. It would ignore being terminated; and the handlers of
    an event loop write to a socket that it shares with its parent, who would stop.
    """
    if _told:
        signal.set_wakeup_fd(-1)
        _told.clear()
    for number, handler in _in_children.items():
        # None: it was not set from Python, and cannot be.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _in_children.clear()
    _has_forked()


at_forks(before=_forks, after_in_parent=_has_forked, after_in_child=_forked)
