"""The keeper of a leadership's lease at the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from curp._core.read_lease import LeaseLength, ReadLease, Renew, Resume, keep_lease
from curp._core.steps import Pause
from curp._replica.driver import Bounded, Driver, Once
from curp.log._commits import GroupLog
from rifl.core._serving.later import Later


class LeadershipKeeper:
    """A loop that renews from when the number was taken until ``stop``.

    ``refused`` is called, by the loop and once, when another number is current.
    """

    def __init__(
        self,
        engine: GroupLog,
        configuration: int,
        read_lease: ReadLease,
        *,
        length: LeaseLength,
        clock: Callable[[], float],
        refused: Callable[[Exception], None],
        driver: Driver,
    ) -> None:
        """``clock``: the seconds that read leases are counted by.

        ``length``: of the replica's leases, this one and those of its next leaderships.
        """
        self._engine = engine
        self.configuration = configuration
        self.read_lease = read_lease
        # Called before a lease that was over runs again: no other replica took it.
        self.resuming: Callable[[], None] = lambda: None
        self.length = length
        self._refused = refused
        self._over = Once()
        # Held while a renewal is in flight: the number changes in between.
        self.renewing = threading.Lock()
        self._work = driver.work()
        rule = keep_lease(read_lease, length, clock, lambda: self._over.done)
        self._loop = driver.loop("curp-lease", rule, self._step, self._work, self._ended)

    def start(self) -> None:
        """Begin."""
        self._loop.start()

    def stop(self) -> Later:
        """Renew no more, and read no more by the lease. Done when no renewal is in flight."""
        with self._work:
            self._over.end()
            self.read_lease.end()
        return self._loop.ended()

    def _ended(self, error: Exception | None) -> None:
        if error is not None:
            self._refused(error)

    def _step(self, step: Any) -> Any:
        if isinstance(step, Pause):
            return Bounded(self._over, step.seconds)
        if isinstance(step, Renew):
            with self.renewing:
                self._engine.renew_leadership(self.configuration, term_s=step.term_s)
        elif isinstance(step, Resume):
            self.resuming()
        else:
            raise RuntimeError(f"no such step: {step!r}")
        return None
