"""The sweeper: it rolls back what crashed producers left pending (DESIGN-LOG §13, C2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_time
from sharedlog._core.errors import LogError
from sharedlog._core.fences import Fence
from sharedlog._core.query.state import Query
from sharedlog._core.sweeping import (
    Plan,
    Signs,
    Silences,
    abandon_silent,
    left_writes,
    remove_silent,
    retire_silent,
    unfinished,
    unfinished_plans,
)
from sharedlog._log.place import Place
from sharedlog._log.rounds import Rounds

_log = get_logger("sharedlog")
SILENT = timedelta(minutes=10)
# Of a write without a name, which may wait for hours for its first task.
_WRITES_S = 24 * 3600.0
# Rounds within the time after which something counts as silent.
_ROUNDS = 10


class Sweeper:
    """A sweeper: it retires producers that have something pending and append nothing for a time.

    Any number of processes can have one. One works; if it ends, another takes over within the same
    time. A context manager: while it is entered a thread makes the rounds.
    """

    def __init__(
        self,
        place: Place,
        silent: timedelta = SILENT,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``Log.sweeper``."""
        check_time(silent, "silent", positive=True)
        silent_s = silent.total_seconds()
        self._place = place
        self._silences = Silences[int, int](silent_s)
        self._plans = Silences[Plan, Signs](silent_s)
        self._writes = Silences[str, Query](max(silent_s, _WRITES_S))
        self._retired: list[int] = []
        # Of the fence, when this one swept last.
        self._number = 0
        self._rounds = Rounds(
            place, "sweeper", silent_s / _ROUNDS, silent_s, self._sweep, _look_again, clock
        )

    @property
    def works(self) -> bool:
        """Whether this one of the log's sweepers does the work, as far as it knows."""
        return self._rounds.works

    def round(self) -> list[int]:
        """Look once, and return the producers that it retired."""
        self._retired = []
        self._rounds.round()
        return self._retired

    def close(self) -> None:
        """End the rounds, after the one that runs; another sweeper takes over at once."""
        self._rounds.close()

    def __enter__(self) -> Sweeper:
        """Begin the rounds; once. Raises ``InvalidRequest`` if it did, or was closed."""
        self._rounds.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self.close()

    def _sweep(self, fence: Fence, now_s: float) -> None:
        self._retired = []
        if fence.number != self._number:
            self._number = fence.number
            _log.info("sweeper_took_over", log=self._place.name, number=fence.number)
        for producer, seq in self._silences.look(self._place.run(unfinished()), now_s).items():
            if self._place.run(retire_silent(producer, seq, fence)):
                self._retired.append(producer)
                _log.info("producer_retired", log=self._place.name, producer=producer, seq=seq)
        for plan in self._plans.look(self._place.run(unfinished_plans()), now_s):
            if self._place.run(abandon_silent(plan, fence)):
                name, number = plan
                _log.info("batch_abandoned", log=self._place.name, query=name, plan=number)
        for write in self._writes.look(self._place.run(left_writes()), now_s).values():
            if self._place.run(remove_silent(write, fence)):
                _log.info("write_removed", log=self._place.name, query=write.name)


def _look_again(error: LogError) -> None:
    """The next round looks again at what this one could not see."""
