"""The tail of a log, watched by one thread for all who wait for an append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from sharedlog._core.errors import LogError
from sharedlog._engines.engine import Engine

_LOOK_S = 0.2


class Tail:
    """Wakes the tasks of one event loop; also says whether the log answers."""

    def __init__(self, engine: Engine, told: Callable[[bool], None]) -> None:
        """``told``: called with whether the log answers, when that changes; from the thread."""
        self._engine = engine
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._tail = 0
        self._answers: bool | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sharedlog-tail", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; within a second or so. Not for the loop's thread."""
        self._stopping.set()
        self._thread.join()

    async def above(self, lsn: int) -> None:
        """Wait until the tail is above an LSN."""
        while self._tail <= lsn:
            await self._changed.wait()

    def _watch(self) -> None:
        tail = -1
        while not self._stopping.is_set():
            try:
                found = self._engine.wait(tail, _LOOK_S)
            except LogError:
                self._tell(False)
                self._stopping.wait(_LOOK_S)
                continue
            self._tell(True)
            if found > tail:
                tail = found
                self._loop.call_soon_threadsafe(self._advance, tail)

    def _tell(self, answers: bool) -> None:
        if answers is not self._answers:
            self._answers = answers
            self._told(answers)

    def _advance(self, tail: int) -> None:
        self._tail = tail
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
