"""The release of a store, when no handler can have its effect any more (DESIGN §6)."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Protocol

from _rifl_ground.log import get_logger

_log = get_logger("rifl.server")
# Only for handlers whose record is owed, whose end nothing tells.
_LOOK_S = 0.5
# At the end of the process: for what is queued to become durable.
_LAST_S = 10.0


class _Held(Protocol):
    """The store, as this asks it; it drains."""

    def handling(self) -> int:
        """How many attempts have a handler that has not ended."""

    def settled(self, timeout_s: float) -> bool:
        """Wait until no attempt runs; False if that took longer."""

    @property
    def cancelled(self) -> int:
        """How many coroutines of handlers were cancelled."""


class StoreRelease:
    """Calls ``let_go`` once: at once, or in a thread when the last handler has ended.

    A process that takes a store over relies on this: no handler of the last owner still
    runs. An operator's *not executed* and an idempotent re-run rest on it. A process whose
    handlers never end keeps its store until it exits: the thread keeps no process alive.

    A coroutine that was cancelled since the server drains, as event loops do when they end,
    may have left a thread behind (``asyncio.to_thread``) that is unknown here. Python joins
    those when the process ends, and then exit hooks run: one of them releases the store.
    ``cancelled``: how many there were when the server began to drain.
    """

    def __init__(self, store: _Held, let_go: Callable[[], None], cancelled: int) -> None:
        self._store = store
        self._let_go = let_go
        self._cancelled = cancelled
        self._done = threading.Event()
        self._exiting = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-letting-go", daemon=True)

    @property
    def done(self) -> bool:
        """Whether the store is released."""
        return self._done.is_set()

    @property
    def begun(self) -> bool:
        """Whether it is let go, or will be: no interrupt came before that."""
        return self._done.is_set() or self._thread.is_alive()

    def begin(self) -> None:
        """Let go, or have it done later; called once."""
        if self._store.handling() or self._left_threads():
            # After the pool's threads have ended, and before this one is cut off.
            atexit.register(self._at_exit)
            self._thread.start()
        else:
            self.at_once()

    def at_once(self) -> None:
        """Let go whatever runs, in the place of ``begin``: as the process's death does."""
        # After a signal's exception it can be asked for again.
        try:
            self._let_go()
        except Exception:
            self._done.set()
            raise
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the store is released; False if that took longer."""
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            while self._store.handling():
                self._store.settled(_LOOK_S)
            if self._left_threads():
                _log.info("kept_until_exit")
                self._exiting.wait()
            self._let_go()
            _log.info("let_go")
        except Exception:  # noqa: BLE001 - logged with its traceback; the process's end lets go
            _log.exception("not_let_go")
        finally:
            self._done.set()
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        # In a forked child the thread has ended.
        if self._thread.is_alive() and not self._store.handling():
            self._exiting.set()
            self._done.wait(_LAST_S)

    def _left_threads(self) -> bool:
        return self._store.cancelled != self._cancelled
