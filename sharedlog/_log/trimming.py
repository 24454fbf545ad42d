"""The trimming of a log: once, or on a schedule by one of the processes that were asked to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from rifl._log import get_logger
from sharedlog._core.catalog import RETENTION, all_streams
from sharedlog._core.errors import Fenced, InvalidRequest, LogError, TrimmedLog
from sharedlog._core.fences import Fence
from sharedlog._core.schedule import leave, take_turn
from sharedlog._core.trim import Committers, Outcome, trim
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered

_log = get_logger("sharedlog")
# Rounds that the one that trims may miss before another takes over, and at least how long.
_MISSED = 3
_SHORTEST_PATIENCE_S = 10.0
_ATTEMPTS = 5


def trim_once(
    place: Place,
    retention: timedelta | None = None,
    committers: Committers | None = None,
    fence: Fence | None = None,
) -> Outcome:
    """Trim what nobody needs. ``retention``: for longer than the streams say."""
    known = Committers() if committers is None else committers
    kept = max([each.retention for each in place.run(all_streams())] or [RETENTION])
    if retention is not None:
        if retention < kept:
            raise InvalidRequest(f"the streams' messages are kept for {kept} at least")
        kept = retention
    retention_us = kept // timedelta(microseconds=1)
    for attempt in range(_ATTEMPTS):
        try:
            outcome = until_answered(
                place, lambda: trim(known, _now_us(), retention_us, fence=fence)
            )
        except TrimmedLog:
            # Another one trimmed what this one was to look at.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            _tell_events(place, outcome)
            return outcome
    raise AssertionError("the last attempt returns or raises")


def _tell_events(place: Place, outcome: Outcome) -> None:
    if outcome.rows:
        _log.info(
            "log_trimmed",
            log=place.name,
            rows=outcome.rows,
            whole_from=outcome.trimmed.whole,
            kept_by=outcome.kept_by,
        )
    names = sorted({each.name for each in outcome.overdue})
    if names:
        _log.warning("holds_overdue", log=place.name, names=names, kept_by=outcome.kept_by)


class Trimming:
    """What ``log.trim_every`` returns: a thread that trims until it is closed. A context manager.

    Of several, in any processes, one trims; another takes over once that one has been silent for
    three rounds, ten seconds at least. ``told`` is called with what each round did, and with
    its error.
    """

    def __init__(
        self,
        place: Place,
        every: timedelta,
        retention: timedelta | None = None,
        told: Callable[[Outcome | LogError], None] | None = None,
    ) -> None:
        """Use ``log.trim_every``."""
        self._every_s = every.total_seconds()
        if self._every_s <= 0:
            raise InvalidRequest(f"every {every}; it is a time")
        self._place = place
        self._retention = retention
        self._told = told
        self._committers = Committers()
        self._fence: Fence | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sharedlog-trim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and let another one take over at once; idempotent. Waits for what runs."""
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> Trimming:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.close()

    def _run(self) -> None:
        while True:
            try:
                outcome = self._round()
            except LogError as error:
                self._tell(error)
            else:
                if outcome is not None:
                    self._tell(outcome)
            if self._closing.wait(self._every_s):
                break
        if self._fence is not None:
            try:
                self._place.run(leave(self._fence))
            except LogError as error:
                self._tell(error)

    def _round(self) -> Outcome | None:
        patience_s = max(_MISSED * self._every_s, _SHORTEST_PATIENCE_S)
        patience_us = int(patience_s * 1_000_000)
        self._fence = self._place.run(take_turn(self._fence, _now_us(), patience_us))
        if self._fence is None:
            return None
        try:
            return trim_once(self._place, self._retention, self._committers, self._fence)
        except Fenced:
            # It was taken for gone, and is no longer the one.
            self._fence = None
            return None

    def _tell(self, found: Outcome | LogError) -> None:
        if self._told is not None:
            self._told(found)


def _now_us() -> int:
    return time.time_ns() // 1000
