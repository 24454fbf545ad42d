"""Searches of the model of a player: how much may go wrong in each, and which rule is broken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from chaos.model.searches import numbers_of

__all__ = [
    "PLAYER_BROKEN",
    "PLAYER_LIVENESS",
    "PLAYER_LIVENESS_LONG",
    "PLAYER_LONG",
    "PLAYER_MODEL",
    "PLAYER_SAFETY",
    "PlayerSearch",
]

PLAYER_MODEL = Path(__file__).with_name("player.pml")


class PlayerSearch(NamedTuple):
    """One search of the whole state space.

    ``players``: of one name, 1 or 2. ``targets``: 1 or 2. ``hangs``: 1 where the other target
    never answers. ``breaks``: of connections, on either side. ``restarts``: of players.
    ``broken``: the number of a rule in the model that does not hold, 0 for none.
    """

    players: int = 1
    targets: int = 1
    hangs: int = 0
    breaks: int = 0
    restarts: int = 0
    broken: int = 0

    def settings(self) -> dict[str, str]:
        """Return what the model's program reads from its environment."""
        return {name.upper(): str(value) for name, value in self._asdict().items()}


PLAYER_SAFETY: tuple[PlayerSearch, ...] = (
    PlayerSearch(targets=2, breaks=1),
    PlayerSearch(breaks=2, restarts=1),
    PlayerSearch(players=2),
)

# More at once: minutes, and gigabytes.
PLAYER_LONG: tuple[PlayerSearch, ...] = (
    PlayerSearch(players=2, breaks=1),
    PlayerSearch(targets=2, restarts=1),
)

# Everything is delivered once faults have ended; a target that hangs delays no other, and nor
# does a second player that was not told that it leads no longer.
PLAYER_LIVENESS: tuple[PlayerSearch, ...] = (
    PlayerSearch(breaks=1, restarts=1),
    PlayerSearch(targets=2, hangs=1),
    PlayerSearch(players=2),
)

# Minutes each.
PLAYER_LIVENESS_LONG: tuple[PlayerSearch, ...] = (PlayerSearch(targets=2, breaks=1),)

# The faults under which breaking a rule shows.
_SHOWS: dict[str, PlayerSearch] = {
    "TERMS_UNCHECKED": PlayerSearch(breaks=1),
    "END_UNLOCKED": PlayerSearch(),
    "QUEUED_IN_RECOVERY": PlayerSearch(),
    "INDEX_UNCONDITIONAL": PlayerSearch(players=2),
    "ANSWERED_BEFORE_COMMIT": PlayerSearch(breaks=1),
    "MOVED_IN_RECOVERY": PlayerSearch(targets=2),
    "INDEX_NOT_ASKED": PlayerSearch(breaks=1),
}

# Each rule that the model can break, by the name it has there.
PLAYER_BROKEN: Mapping[str, PlayerSearch] = MappingProxyType(
    {
        name: _SHOWS[name]._replace(broken=number)
        for name, number in numbers_of(PLAYER_MODEL).items()
    }
)
