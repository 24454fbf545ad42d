"""Response streams whose caller left: their handlers, and the thread that ends them (DESIGN §4)."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from typing import Any, Protocol

from _rifl_ground.log import get_logger

_log = get_logger("rifl.server")


class _Made(Protocol):
    """A handler under way."""

    def finish(self) -> None:
        """Run it to its end."""


class AbandonedStreams:
    """The handlers under way, and a thread for those that no other one may run.

    gRPC drops the answer's generator when the caller is gone, in the thread that ran the
    handler: there it runs on, since what handlers open often belongs to one thread. But
    where a collection closes the generator, that thread may hold any lock, the store's
    too; then the rest is left to a thread of ours. Any thread.
    """

    def __init__(self) -> None:
        # Else the collection that closes the generator closes the handler, too.
        self._kept: set[_Made] = set()
        self._left: queue.SimpleQueue[_Made | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, made: _Made) -> None:
        """Keep a handler alive; the thread that may run it is there from now."""
        self._kept.add(made)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    weakref.finalize(self, self._left.put, None).atexit = False
                    self._thread = threading.Thread(
                        target=_run, args=(self._left,), name="rifl-run-on", daemon=True
                    )
                    self._thread.start()

    def forget(self, made: _Made) -> None:
        """Keep it no longer: it has ended."""
        self._kept.discard(made)

    def run(self, made: _Made) -> None:
        """Run a handler to its end, here or soon; where a collection calls: without a lock."""
        self._kept.discard(made)
        if _Collecting.thread == threading.get_ident():
            self._left.put(made)
        else:
            made.finish()


class _Collecting:
    """Which thread collects now; the collector runs on one at a time."""

    thread = 0

    @classmethod
    def told(cls, phase: str, _: dict[str, Any]) -> None:
        cls.thread = threading.get_ident() if phase == "start" else 0


gc.callbacks.append(_Collecting.told)


def _run(left: queue.SimpleQueue[_Made | None]) -> None:
    while (made := left.get()) is not None:
        try:
            made.finish()
        except Exception:  # noqa: BLE001 - one of them must not end the others
            _log.exception("running_on_raised")
        del made
