"""Serving until a signal, and stopping without breaking a call (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import grpc
import grpc.aio

from rifl._log import get_logger
from rifl._server.deduplicator import Deduplicator

_log = get_logger("rifl.server")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For answers that are ready to leave their sockets.
_LAST_S = 1.0
_LOOK_S = 0.5
_STEP_S = 0.1
# A server whose own handlers, not deduplicated, never end is not waited for longer.
_STOPPED_S = 5.0
# For log records on their way: a thread that never ends may hold a lock of theirs.
_FLUSH_S = 2.0
# Of a process that was ended with calls running.
_CALLS_LEFT = 1
# What signals are to do in a forked child, by number: what they did before this process served.
_in_children: dict[signal.Signals, Any] = {}
# Who on a loop is told of a signal: a loop has room for one.
_told: dict[tuple[asyncio.AbstractEventLoop, signal.Signals], list[Callable[[], None]]] = {}


def serve_until_signal(
    server: grpc.Server,
    dedup: Deduplicator,
    grace: float = 30.0,
    *,
    signals: Iterable[signal.Signals] = _SIGNALS,
    end_process: bool = True,
) -> int:
    """Block until a signal, then drain, stop the server and close ``dedup``.

    ``server`` has been started. From the signal on, new calls are refused as
    DRAINING (not executed: clients send them again, elsewhere if they can),
    health is NOT_SERVING, duplicates are still answered, and calls that run have
    ``grace`` seconds to end and be recorded. A second signal ends the wait.

    Returns 0 when all of them have ended: ``dedup`` is closed then. Where calls are left
    after that it ends the process, by ``os._exit(1)`` after flushing logs and standard
    streams: a pool's threads would keep it alive for as long as they run, and what they do
    then could come after another process answered for them. It is a crash as far as the
    calls are concerned: plain ones have an unknown outcome, atomic ones happened or not,
    idempotent ones run again. Exit hooks and ``finally`` blocks of the application do not run.

    ``end_process=False`` returns how many calls are left instead. The store stays this
    process's, then, until they have ended or the process has (see ``Deduplicator.close``).

    Handlers of methods that are not deduplicated are not counted: as with bare gRPC the
    process ends after they have. In the main thread only; the signals' handlers are put back.
    """
    # Signals that came. Their function runs between any two steps of this thread, so it takes
    # no lock that this thread may hold, such as an event's.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle(number: int, frame: Any) -> None:
        del frame
        came.put(number)

    before = {number: signal.signal(number, handle) for number in signals}
    _in_children.update(before)
    try:
        # In steps: a signal that comes just before the wait does not end it, and its
        # handler runs only when this thread is awake.
        while not _came(came, _LOOK_S):
            pass
        _log.info("draining", grace_s=grace)
        dedup.drain()
        deadline = time.monotonic() + grace
        left = dedup.drained(0)
        while left and came.empty() and time.monotonic() < deadline:
            # In short steps, so that the second signal is seen.
            left = dedup.drained(min(_STEP_S, max(0.0, deadline - time.monotonic())))
        server.stop(_LAST_S).wait(_STOPPED_S)
        left = dedup.drained(0)
        dedup.close(0.0 if left else None)
        _log.info("stopped", calls_left=left)
        if left and end_process:
            _end(left)
        return left
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            _in_children.pop(number, None)


def _came(signals: queue.SimpleQueue[int], timeout_s: float) -> bool:
    try:
        signals.get(timeout=timeout_s)
    except queue.Empty:
        return False
    return True


async def serve_until_signal_async(
    server: grpc.aio.Server,
    dedup: Deduplicator,
    grace: float = 30.0,
    *,
    signals: Iterable[signal.Signals] = _SIGNALS,
    end_process: bool = True,
) -> int:
    """Do what ``rifl.serve_until_signal`` does, on an event loop: ``rifl.aio.serve_until_signal``.

    The loop runs in the main thread; a handler that blocks it blocks this, too. Several servers
    of one loop may be served at the same time: a signal is for all of them. Cancelled, it
    drains and stops all the same, and never ends the process.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def handle() -> None:
        (hurry if stop.is_set() else stop).set()

    numbers = tuple(signals)
    for number in numbers:
        _tell(loop, number, handle)
    try:
        try:
            await stop.wait()
        finally:
            _log.info("draining", grace_s=grace)
            dedup.drain()
            deadline = time.monotonic() + grace
            left = dedup.drained(0)
            while left and not hurry.is_set() and time.monotonic() < deadline:
                # A thread waits, since the loop has calls to finish; in short
                # steps, so that the second signal is seen and no thread stays.
                step_s = min(_STEP_S, max(0.0, deadline - time.monotonic()))
                left = await asyncio.to_thread(dedup.drained, step_s)
            # Not cancelled if it takes longer.
            await asyncio.wait([asyncio.ensure_future(server.stop(_LAST_S))], timeout=_STOPPED_S)
            left = dedup.drained(0)
            await dedup.aclose(0.0 if left else None)
            _log.info("stopped", calls_left=left)
        if left and end_process:
            _end(left)
        return left
    finally:
        for number in numbers:
            _tell_no_more(loop, number, handle)


def _tell(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[], None]
) -> None:
    """Have a function called at a signal, beside those that already are."""
    before = signal.getsignal(number)
    told = _told.setdefault((loop, number), [])

    def tell() -> None:
        for each in tuple(told):
            each()

    loop.add_signal_handler(number, tell)
    if not told:
        # As the loop has it, when it is told of the signal no more.
        by_default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        _in_children[number] = signal.SIG_IGN if before == signal.SIG_IGN else by_default
    told.append(handle)


def _tell_no_more(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[], None]
) -> None:
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


os.register_at_fork(before=_forks, after_in_parent=_has_forked, after_in_child=_forked)


def _end(left: int) -> NoReturn:
    """End the process with threads that nothing else would end."""
    _log.warning("ended_with_calls_running", calls=left, status=_CALLS_LEFT)
    flushing = threading.Thread(target=_flush, name="rifl-flush", daemon=True)
    flushing.start()
    flushing.join(_FLUSH_S)
    os._exit(_CALLS_LEFT)


def _flush() -> None:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
