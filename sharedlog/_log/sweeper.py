"""The sweeper: it rolls back what producers that died have left pending (DESIGN-LOG §13, C2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from rifl._log import get_logger
from sharedlog._core.errors import InvalidRequest, LogUnavailable
from sharedlog._core.fences import Fence
from sharedlog._core.sweeping import Sign, beat, retire_silent, sign, take_over, unfinished
from sharedlog._log.place import Place

_log = get_logger("sharedlog")
SILENT = timedelta(minutes=10)
# Rounds within the time after which something counts as silent.
_ROUNDS = 10


class Sweeper:
    """Retires producers that have something pending and append nothing for a time.

    Any number of processes may have one: one works, another goes on within the same time. A
    context manager: inside it a thread makes the rounds.
    """

    def __init__(
        self,
        place: Place,
        silent: timedelta = SILENT,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``Log.sweeper``."""
        self._place = place
        self._silent_s = silent.total_seconds()
        if self._silent_s <= 0:
            raise InvalidRequest(f"silent for {silent}; it is a time")
        self._clock = clock
        self._fence: Fence | None = None
        # What was seen first when, and has not changed since.
        self._sign: tuple[Sign, float] | None = None
        self._seen: dict[int, tuple[int, float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="sharedlog-sweeper", daemon=True)

    @property
    def works(self) -> bool:
        """Whether it is this one of the log's sweepers that does the work, as it last knew."""
        return self._fence is not None

    def round(self) -> list[int]:
        """Look once, and return the producers that were retired."""
        now = self._clock()
        run = self._place.run
        if self._fence is not None and not run(beat(self._fence)):
            self._fence = None
        if self._fence is None:
            found = run(sign())
            if self._sign is None or self._sign[0] != found:
                self._sign = (found, now)
            untouched = found == Sign(0, None)
            if not untouched and now - self._sign[1] < self._silent_s:
                self._seen = {}
                return []
            self._fence = run(take_over(found))
            run(beat(self._fence))
            _log.info("sweeper_took_over", log=self._place.name, number=self._fence.number)
        return self._retired(run(unfinished()), now, self._fence)

    def _retired(self, there: dict[int, int], now: float, fence: Fence) -> list[int]:
        self._seen = {
            producer: seen
            if (seen := self._seen.get(producer)) is not None and seen[0] == seq
            else (seq, now)
            for producer, seq in there.items()
        }
        silent = [
            producer for producer, (_, since) in self._seen.items() if now - since >= self._silent_s
        ]
        retired = [
            producer
            for producer in silent
            if self._place.run(retire_silent(producer, there[producer], fence))
        ]
        for producer in retired:
            _log.info(
                "producer_retired",
                log=self._place.name,
                producer=producer,
                seq=there[producer],
            )
        return retired

    def __enter__(self) -> Sweeper:
        """Begin the rounds."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End them."""
        self._stopping.set()
        self._thread.join()

    def _sweep(self) -> None:
        while not self._stopping.wait(self._silent_s / _ROUNDS):
            if self._place.closing.is_set():
                return
            # The next round looks again at what this one could not see.
            with suppress(LogUnavailable):
                self.round()
