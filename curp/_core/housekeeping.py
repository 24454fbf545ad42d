"""The housekeeping of a leadership: what comes due by time alone (DESIGN §5 and §7).

A generator that its shell drives, as ``curp._core.recovery`` is.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from curp._core.steps import Pause, ReportFailure


class WarnOfGrowth(NamedTuple):
    """Say, once, that the log grows and nothing trims it, where that is so."""


class EndClients(NamedTuple):
    """End the clients whose leases are over, by entries in the log (invariant 7)."""


class ExpireKeys(NamedTuple):
    """Drop the answers to keys whose retention has passed."""


class LookAfterWitnesses(NamedTuple):
    """See to the witness list: ``curp._core.witness_upkeep.keep_up``."""


class SnapshotIfDue(NamedTuple):
    """Take a snapshot if the log has grown enough (invariant 8)."""


_ROUND = (WarnOfGrowth(), EndClients(), ExpireKeys(), LookAfterWitnesses(), SnapshotIfDue())


def keep_house(every_s: float) -> Generator[Any, Any, None]:
    """Do each round what is due, until the leadership ends; what fails waits for the next one."""
    while not (yield Pause(every_s)):
        try:
            for step in _ROUND:  # noqa: UP028 - what a step gives is not for a tuple
                yield step
        except Exception as error:  # noqa: BLE001 - reported; the next round may work
            yield ReportFailure("housekeeping_failed", error)
