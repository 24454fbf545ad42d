"""Leadership: the configuration number, whose it is, and the lease (invariants 1, 2 and 10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from curp.log import _checks as checks
from curp.log._commits.keys import (
    CONFIGURATION,
    LEADER,
    LEASE,
    LeaderRow,
    current,
    metadata_puts,
    number,
    read_number,
)
from curp.log._errors import CorruptLog, LeaseHeld, LogUnavailable
from curp.log._values import Leadership
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._engines.engine import Engine

_ROUNDS = 20
# Of a lease that is over: it is not said to be just at its end.
_OVER_S = 0.001


class LeadershipLease:
    """A group's leadership in an engine. Any thread.

    The key ``lease`` is there while the lease runs, by the engine's own clock: a take-over has
    the condition that it is absent, or the same replica's, so that it is judged in the step
    that writes the number. What is said to be left of it is a hint, which may be more: where a
    server's clock was seen to jump, and others had better wait.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        # When the lease of a configuration was first seen to be over.
        self._over = (0, 0.0)

    def configuration(self) -> int:
        """Return the current number, 0 before the first."""
        return read_number(CONFIGURATION, self._engine.get((CONFIGURATION,))[CONFIGURATION])

    def leadership(self) -> Leadership | None:
        """Return the newest leadership, None if there was never one."""
        found = self._engine.get((CONFIGURATION, LEADER))
        configuration = read_number(CONFIGURATION, found[CONFIGURATION])
        if not configuration:
            return None
        leader = LeaderRow.read(found[LEADER])
        left_s = self._left_s(configuration)
        return Leadership(configuration, leader.replica, leader.address, left_s)

    def take(self, replica: str, address: str, term_s: float) -> int:
        """Begin a new configuration; raises ``LeaseHeld``."""
        for _ in range(_ROUNDS):
            # Before what is left of it is asked: no renewal between is missed.
            found = self._engine.get((CONFIGURATION, LEADER, LEASE))
            configuration = read_number(CONFIGURATION, found[CONFIGURATION])
            leader = LeaderRow.read(found[LEADER])
            if configuration and leader.replica != replica:
                left_s = self._engine.remaining(LEASE)
                if left_s > 0:
                    raise LeaseHeld.by(leader.replica, left_s)
                # Over since then, perhaps.
                found[LEASE] = None
            conditions = (current(configuration), Condition(LEASE, found[LEASE]))
            puts = (Put(LEADER, LeaderRow(replica, address).value()),)
            if self._begin(configuration, term_s, conditions, puts):
                return configuration + 1
        raise LogUnavailable("others take the leadership, one after the other")

    def renew(self, configuration: int, term_s: float) -> None:
        """Let the lease run for a term from now; raises ``LeadershipOver``."""
        self._require_number(configuration)
        lease = Put(LEASE, number(configuration), term_s=term_s)
        try:
            self._engine.commit(Commit((current(configuration),), (lease,)))
        except Refused as refused:
            checks.require_configuration(configuration, _configuration(refused))
            raise

    def end(self, configuration: int) -> None:
        """Let the lease end now; nothing happens if the number is not current."""
        if configuration < 1:
            return
        try:
            self._engine.commit(Commit((current(configuration),), (Put(LEASE, None),)))
        except Refused:
            return

    def next(self, configuration: int, metadata: Mapping[str, bytes | None], term_s: float) -> int:
        """Begin the number after that one, with these metadata; raises ``LeadershipOver``."""
        self._require_number(configuration)
        if not self._begin(
            configuration, term_s, (current(configuration),), metadata_puts(metadata)
        ):
            checks.require_configuration(configuration, self.configuration())
            raise CorruptLog("the configuration number went back, and was given again")
        return configuration + 1

    def _begin(
        self,
        configuration: int,
        term_s: float,
        conditions: tuple[Condition, ...],
        puts: tuple[Put, ...],
    ) -> bool:
        """Put the next number with a lease of its own; whether all that holds."""
        following = number(configuration + 1)
        lease = Put(LEASE, following, term_s=term_s)
        try:
            self._engine.commit(Commit(conditions, (Put(CONFIGURATION, following), lease, *puts)))
        except Refused:
            return False
        return True

    def _require_number(self, configuration: int) -> None:
        if configuration < 1:
            checks.require_configuration(configuration, self.configuration())

    def _left_s(self, configuration: int) -> float:
        left_s = self._engine.remaining(LEASE)
        if left_s > 0:
            self._over = (0, 0.0)
            return left_s
        # Not every engine knows since when.
        known, since = self._over
        now = self._clock()
        if known != configuration:
            self._over = configuration, since = configuration, now
        return min(left_s, since - now - _OVER_S)


def _configuration(refused: Refused) -> int:
    return read_number(CONFIGURATION, refused.found[CONFIGURATION])
