"""Says that a process outlived its leaderships, so that none counts as a death (invariant 12)."""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.log import get_logger
from curp._replica.poisoning import read_left, update_ledger
from curp.log._commits import GroupLog
from curp.log._errors import ConditionFailed, LeadershipOver

_log = get_logger("curp.replica")


class Survival:
    """Of one process of a replica; in the replica's thread.

    The next leader takes a leader for dead that left calls noted: it cannot know that
    this one only lost the engine, or its lease. So a process that stepped down says that it
    lives, once its handlers have ended: what they run may yet kill it. If it dies before it
    could say so, that counts as a death.
    """

    def __init__(self, engine: GroupLog, executing: Callable[[], int]) -> None:
        """``executing``: how many handlers of earlier leaderships may still run."""
        self._engine = engine
        self._executing = executing
        # The first and the last number of each leadership of which notes may be counted yet.
        self._led: list[tuple[int, int]] = []

    def stepped_down(self, first: int, last: int) -> None:
        """Note that a leadership is over, which had these numbers and those in between."""
        self._led.append((first, last))

    def tell(self) -> None:
        """Say so in the engine if it matters; the caller calls this again and again.

        Raises ``LogError`` if the engine does not answer; nothing is forgotten then.
        """
        if not self._led or self._executing():
            return
        leadership = self._engine.leadership()
        # Asked for first: once another number is current, no late write adds a note.
        number = 0 if leadership is None else leadership.configuration
        left = read_left(self._engine)
        counted = {death.configuration for case in left.ledger.cases for death in case.died}
        if left.configuration not in left.ledger.outlived:
            counted.add(left.configuration)
        own = frozenset(each for each in counted if self._own(each))
        if own:
            try:
                # Not the leader's own: under whatever number there is.
                update_ledger(self._engine, number, lambda ledger: ledger.lived(own))
            except (ConditionFailed, LeadershipOver):
                return
            _log.info("outlived", configurations=sorted(own))
        self._led = [(first, last) for first, last in self._led if last >= number]

    def _own(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self._led)
