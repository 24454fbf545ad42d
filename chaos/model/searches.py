"""Searches of the model of a group: how much may go wrong in each, and which rule is broken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

__all__ = ["BROKEN", "LIVENESS", "LONG", "MODEL", "SAFETY", "AnySearch", "Search", "numbers_of"]

MODEL = Path(__file__).with_name("curp.pml")


class AnySearch(Protocol):
    """A search of one of the models."""

    @property
    def broken(self) -> int:
        """The number of the rule that does not hold, 0 for none."""

    def settings(self) -> dict[str, str]:
        """Return what the model's program reads from its environment."""


class Search(NamedTuple):
    """One search of the whole state space.

    ``losses``: messages that get lost. ``removals``: leases that end. ``restarts``: of
    the witness. ``reads``: of a third client. ``registered``: 1 where the log knows
    both clients at the start, so that their first calls may be answered first.
    ``broken``: the number of a rule in the model that does not hold, 0 for none.
    """

    losses: int = 0
    removals: int = 0
    restarts: int = 0
    reads: int = 0
    registered: int = 1
    broken: int = 0

    def settings(self) -> dict[str, str]:
        """Return what the model's program reads from its environment."""
        return {name.upper(): str(value) for name, value in self._asdict().items()}


# Two clients, two leaders, one leader change in each.
SAFETY: tuple[Search, ...] = (
    Search(removals=1),
    Search(restarts=1),
    Search(losses=1, registered=0),
    Search(reads=1, registered=0),
)

# More at once: minutes, and gigabytes.
LONG: tuple[Search, ...] = (
    Search(losses=1),
    Search(removals=1, restarts=1),
    Search(reads=1),
    Search(losses=1, removals=1, registered=0),
)

# A witness that forgot is never believed, so a group whose only one restarts waits without end.
LIVENESS = Search()

# The faults under which breaking a rule shows.
_SHOWS: dict[str, Search] = {
    "WITNESS_UNASKED": Search(),
    "CONFLICT_ACCEPTED": Search(),
    "CONFIGURATION_UNCHECKED": Search(losses=1),
    "RESTARTED_WITNESS_BELIEVED": Search(restarts=1),
    "WITNESS_NOT_FROZEN": Search(),
    "CONFLICT_ANSWERED": Search(),
    "UNREGISTERED_ANSWERED": Search(registered=0),
    "APPEND_UNCONDITIONAL": Search(),
    "SERVES_WITHOUT_WITNESS": Search(),
    "LIST_READ_BEFORE_NUMBER": Search(),
    "TRACKERS_NOT_ASKED": Search(),
    "ACKNOWLEDGED_DURING_REPLAY": Search(),
    "REMOVED_BEFORE_SYNC": Search(removals=1),
    "DUPLICATE_WITHOUT_SYNC_STATE": Search(losses=1),
    "SYNC_BY_ANOTHER_LEADER": Search(losses=1),
    "READ_UNSYNCED": Search(reads=2),
    "LEASE_UNASKED": Search(reads=1),
    "LEASE_NOT_WAITED_FOR": Search(reads=1),
    "UNSYNCED_COLLECTED": Search(),
    "IDENTITY_REDRAWN": Search(losses=1),
    "LATE_START_BELIEVED": Search(restarts=1),
}


def numbers_of(model: Path) -> dict[str, int]:
    """Return the rules that a model can break, and their numbers there."""
    named = re.findall(r"^#define ([A-Z_]+) (\d+) +/\* .*\*/$", model.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in named}


# Each rule that the model can break, by the name it has there.
BROKEN: Mapping[str, Search] = MappingProxyType(
    {name: _SHOWS[name]._replace(broken=number) for name, number in numbers_of(MODEL).items()}
)
