"""When a leadership sees to its witness list again (DESIGN §7, invariants 2 and 11)."""

from __future__ import annotations

from curp.core.recovery import WitnessList
from curp.core.witness_change import left_out

__all__ = ["Upkeep"]

_LOOK_S = 1.0


class Upkeep:
    """Decides whom to ask, whom to tell, and what list to put in force anew.

    1. Witnesses that were asked for and could not be started are asked every second
       whether they answer by now.
    2. The list as it was asked for is put in force anew, under the next number, when one of
       them does, or when one of those that serve forgot what it held; but not when another
       number is in force than that was found under: its witnesses began anew.
    3. Those that serve are told the secrets of client tokens when these changed.

    Not thread-safe. No clock: ``now`` is seconds of the caller's.
    """

    def __init__(
        self, listed: WitnessList, secrets: tuple[tuple[int, bytes], ...], now: float
    ) -> None:
        """``listed``: in force. ``secrets``: those its witnesses were started with."""
        self.listed = listed
        self._secrets = secrets
        self._look_at = now + _LOOK_S

    def missing(self, now: float) -> tuple[str, ...]:
        """Return whom to ask now whether they answer."""
        missing = left_out(self.listed)
        if not missing or now < self._look_at:
            return ()
        self._look_at = now + _LOOK_S
        return missing

    def again(self, found_under: int) -> tuple[str, ...] | None:
        """Return what list to put in force, of what was found under that number; or None."""
        return self.listed.wanted if self.listed.configuration == found_under else None

    def to_tell(self, secrets: tuple[tuple[int, bytes], ...]) -> tuple[str, ...]:
        """Return whom to tell the secrets that are valid now; each is tried once."""
        if secrets == self._secrets:
            return ()
        self._secrets = secrets
        return self.listed.witnesses
