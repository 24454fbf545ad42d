"""The trimming of a log: once, or on a schedule by one of the processes that were asked to."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_called, check_time
from sharedlog._core.catalog import RETENTION, all_streams
from sharedlog._core.errors import Fenced, InvalidRequest, LogError, TrimmedLog
from sharedlog._core.fences import Fence
from sharedlog._core.trim import Committers, TrimOutcome, trim
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered
from sharedlog._log.rounds import Rounds, tell

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
) -> TrimOutcome:
    """Trim what is not needed. ``retention``: keep for longer than the streams say."""
    if retention is not None:
        check_time(retention, "retention")
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
            # Another one trimmed what this one wanted to read.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            _tell_events(place, outcome)
            return outcome
    raise AssertionError("the last attempt returns or raises")


def _tell_events(place: Place, outcome: TrimOutcome) -> None:
    if outcome.rows:
        _log.info(
            "log_trimmed",
            log=place.name,
            rows=outcome.rows,
            whole_from=outcome.trimmed.whole,
            kept_by=outcome.kept_by,
        )
    if outcome.remaining:
        _log.warning("log_trim_without_room", log=place.name, remaining=outcome.remaining)
    names = sorted({each.name for each in outcome.overdue})
    if names:
        _log.warning("holds_overdue", log=place.name, names=names, kept_by=outcome.kept_by)


class Trimming:
    """A thread that trims until it is closed; ``log.trim_every`` returns it. A context manager.

    Of several, in any processes, one trims. Another takes over after no sign of that one for three
    rounds, ten seconds at least. ``told`` is called with the outcome of each round, or with its
    error.
    """

    def __init__(
        self,
        place: Place,
        every: timedelta,
        retention: timedelta | None = None,
        told: Callable[[TrimOutcome | LogError], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``log.trim_every``."""
        check_time(every, "every", positive=True)
        if retention is not None:
            check_time(retention, "retention")
        check_called(told, "told")
        every_s = every.total_seconds()
        self._place = place
        self._retention = retention
        self._told = told
        self._committers = Committers()
        # Of the fence, when this one trimmed last.
        self._number = 0
        patience_s = max(_MISSED * every_s, _SHORTEST_PATIENCE_S)
        self._rounds = Rounds(place, "trimmer", every_s, patience_s, self._trim, self._tell, clock)
        self._rounds.start()

    def close(self) -> None:
        """Stop, after the round that runs; another one takes over at once. Idempotent."""
        self._rounds.close()

    def __enter__(self) -> Trimming:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    def _trim(self, fence: Fence, _: float) -> None:
        if fence.number != self._number:
            self._number = fence.number
            _log.info("trimmer_took_over", log=self._place.name, number=fence.number)
        try:
            self._tell(trim_once(self._place, self._retention, self._committers, fence))
        except Fenced:
            # It was taken for gone, and is no longer the one.
            return

    def _tell(self, found: TrimOutcome | LogError) -> None:
        tell(self._told, found)


def _now_us() -> int:
    return time.time_ns() // 1000
