"""Searches of the model of a log: how much may go wrong in each, and which rule is broken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from chaos.model.searches import numbers_of

__all__ = ["LOG_BROKEN", "LOG_LONG", "LOG_MODEL", "LOG_SAFETY", "LogSearch"]

LOG_MODEL = Path(__file__).with_name("log.pml")


class LogSearch(NamedTuple):
    """One search of the whole state space.

    ``grouped``: 0 where a writer decides its own transactions, 1 where a coordinator commits
    those of two writers by one marker. ``losses``: replies that get lost. ``crashes``: of writers
    and of the coordinator. ``retires``: of producers whose writers may be alive. ``broken``: the
    number of a rule in the model that does not hold, 0 for none.
    """

    grouped: int = 0
    losses: int = 0
    crashes: int = 0
    retires: int = 0
    broken: int = 0

    def settings(self) -> dict[str, str]:
        """Return what the model's program reads from its environment."""
        return {name.upper(): str(value) for name, value in self._asdict().items()}


LOG_SAFETY: tuple[LogSearch, ...] = (
    LogSearch(losses=2, crashes=1, retires=1),
    LogSearch(grouped=1, losses=1),
    LogSearch(grouped=1, crashes=1),
    LogSearch(grouped=1, retires=1),
)

# More at once: minutes, and gigabytes.
LOG_LONG: tuple[LogSearch, ...] = (
    LogSearch(grouped=1, losses=1, crashes=1),
    LogSearch(grouped=1, losses=1, retires=1),
)

# The faults under which breaking a rule shows.
_SHOWS: dict[str, LogSearch] = {
    "BEGINS_UNCOMPARED": LogSearch(grouped=1),
    "HIGHEST_UNCOVERED": LogSearch(grouped=1),
    "TRY_NOT_ROLLED_BACK": LogSearch(),
    "RETIRED_IN_TWO_STEPS": LogSearch(retires=1),
    "RETIRED_UNCONDITIONALLY": LogSearch(retires=1),
    "RETIRED_APPENDS": LogSearch(retires=1),
    "ANSWER_NOT_KEPT": LogSearch(losses=1),
    "SPAN_UNBOUNDED": LogSearch(),
}

# Each rule that the model can break, by the name it has there.
LOG_BROKEN: Mapping[str, LogSearch] = MappingProxyType(
    {name: _SHOWS[name]._replace(broken=number) for name, number in numbers_of(LOG_MODEL).items()}
)
