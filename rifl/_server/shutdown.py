"""Shutdown: a server serves until a signal, then stops without breaking a call (DESIGN §4)."""

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
from collections.abc import Iterable
from typing import NoReturn

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from _rifl_ground.signals import taken_signals, tell, tell_no_more
from _rifl_ground.threads import in_thread
from rifl._server.deduplicator import Deduplicator

_log = get_logger("rifl.server")
_GRACE_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For answers that are ready to leave their sockets.
_LAST_S = 1.0
_LOOK_S = 0.5
_STEP_S = 0.1
# A server whose own handlers, not deduplicated, never end is not waited for longer.
_STOPPED_S = 5.0
# For log records on their way: a thread that never ends may hold a lock of theirs.
_FLUSH_S = 2.0
# The exit status of a process that was ended with calls running.
_CALLS_LEFT = 1


def serve_until_signal(
    server: grpc.Server,
    dedup: Deduplicator,
    grace: float = _GRACE_S,
    *,
    signals: Iterable[signal.Signals] = _SIGNALS,
    end_process: bool = True,
) -> int:
    """Block until a signal, then drain, stop the server and close ``dedup``.

    ``server`` has been started. From the signal on, new calls are refused as
    DRAINING (not executed: clients send them again, elsewhere if they can),
    health is NOT_SERVING, and duplicates are still answered. Running calls have
    ``grace`` seconds to end and be recorded. A second signal ends the wait.

    Returns 0 when all of them have ended: ``dedup`` is closed then. If calls are left
    after that, it flushes logs and standard streams and ends the process by
    ``os._exit(1)``: a pool's threads would keep the process alive, and might have effects
    after another process answered for them. For the calls it is a crash: plain ones have
    an unknown outcome, atomic ones happened or not, idempotent ones run again. Exit hooks
    and ``finally`` blocks of the application do not run.

    ``end_process=False`` returns how many calls are left instead. The process then keeps
    the store until these calls or the process end (see ``Deduplicator.close``).

    Handlers of methods that are not deduplicated are not counted: as with bare gRPC the
    process ends after they have. In the main thread only; the signals' handlers are put back.
    """
    with taken_signals(signals) as came:
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


def _came(signals: queue.SimpleQueue[int], timeout_s: float) -> bool:
    try:
        signals.get(timeout=timeout_s)
    except queue.Empty:
        return False
    return True


async def serve_until_signal_async(
    server: grpc.aio.Server,
    dedup: Deduplicator,
    grace: float = _GRACE_S,
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
        tell(loop, number, handle)
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
                left = await in_thread(dedup.drained, step_s)
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
            tell_no_more(loop, number, handle)


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
