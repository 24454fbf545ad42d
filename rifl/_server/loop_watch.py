"""The watch over event loops: a handler that blocks one is named (DESIGN-LOG §15)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType

from _rifl_ground.log import get_logger
from _rifl_ground.loops import tell_loop
from rifl._server import aio

_log = get_logger("rifl.server")
# A loop that answers nothing for so long is told of, and again each time after twice as long.
_TOLD_AFTER_S = 5.0


class LoopWatch:
    """Of one loop. Made in its thread; another thread looks."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._answered = True
        self._asked_s = 0.0
        self._due_s = _TOLD_AFTER_S

    def look(self, now_s: float) -> None:
        """Ask the loop, or tell of one that has not answered."""
        if self._answered:
            self._answered, self._asked_s, self._due_s = False, now_s, _TOLD_AFTER_S
            tell_loop(self.loop, self._answer)
            return
        seconds = now_s - self._asked_s
        if seconds >= self._due_s and not self.loop.is_closed():
            self._due_s = 2 * seconds
            self._tell(seconds)

    def _answer(self) -> None:
        self._answered = True

    def _tell(self, seconds: float) -> None:
        frame = inner = sys._current_frames().get(self._thread_id)
        while frame is not None and not _runs_handler(frame):
            frame = frame.f_back
        # None: what blocks it is no handler.
        attempt = None if frame is None else frame.f_locals["attempt"]
        if attempt is not None and inner is not None:
            _log.error(
                "handler_blocks_loop",
                method=attempt.call.method,
                rpc_id=str(attempt.call.rpc_id),
                at=f"{inner.f_code.co_filename}:{inner.f_lineno}",
                seconds=round(seconds),
            )


class LoopWatches:
    """Of all loops that handlers of one ``Deduplicator`` run on for somebody who called none."""

    def __init__(self) -> None:
        self._watches: list[LoopWatch] = []

    def add(self) -> None:
        """Watch over the loop that runs; at once if it is known."""
        loop = asyncio.get_running_loop()
        if not any(each.loop is loop for each in self._watches):
            kept = [each for each in self._watches if not each.loop.is_closed()]
            self._watches = [*kept, LoopWatch()]

    def look(self) -> None:
        """Look at each; the sweeper's thread does."""
        for each in self._watches:
            each.look(time.monotonic())


def _runs_handler(frame: FrameType) -> bool:
    code = frame.f_code
    is_run = code.co_name == "run" and code.co_filename == aio.__file__
    return is_run and "attempt" in frame.f_locals
