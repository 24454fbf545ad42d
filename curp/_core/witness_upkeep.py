"""The upkeep of a leadership's witness list (DESIGN §7, invariants 2 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from curp._core.witness_list import WitnessList, left_out

_LOOK_S = 1.0
_MOST_S = 60.0


class TellSecrets(NamedTuple):
    """Tell witnesses that serve that number the secrets that are valid now."""

    addresses: tuple[str, ...]
    configuration: int


class AskWhetherThere(NamedTuple):
    """Ask witnesses how they are; send back those that answer."""

    addresses: tuple[str, ...]


class ListAgain(NamedTuple):
    """Put the list in force anew that is wanted, if that number still is."""

    configuration: int


class WitnessUpkeep:
    """Decides whom to ask, whom to tell, and what list to put in force anew.

    1. Witnesses that were asked for and could not be started are asked every second
       whether they answer by now.
    2. The list as it was asked for is put in force anew, under the next number, when one of
       them does, or when one of those that serve forgot what it held; but not when another
       number is in force than that was found under: its witnesses began anew.
    3. One that answers and is left out of that list, too, refuses to be started: another
       group's, say. Each time it is asked only after twice as long as before, a minute at
       most, since each number makes the leader wait for the log. Every second again when
       other witnesses are left out than before.
    4. Those that serve are told the secrets of client tokens when these changed.

    Not thread-safe. No clock: ``now`` is seconds of the caller's.
    """

    def __init__(
        self, listed: WitnessList, secrets: tuple[tuple[int, bytes], ...], now: float
    ) -> None:
        """``listed``: in force. ``secrets``: those its witnesses were started with."""
        self.listed = listed
        self._secrets = secrets
        self._pauses: dict[str, float] = {}
        self._look_at: dict[str, float] = {}
        self._answered: set[str] = set()
        self._begin(now)

    def missing(self, now: float) -> tuple[str, ...]:
        """Return whom to ask now whether they answer."""
        due = tuple(address for address, at in self._look_at.items() if now >= at)
        for address in due:
            self._look_at[address] = now + self._pauses[address]
        return due

    def answers(self, address: str) -> None:
        """Take that one of them answers; ``again`` says what list to put in force."""
        self._answered.add(address)

    def again(self, found_under: int) -> tuple[str, ...] | None:
        """Return what list to put in force, of what was found under that number; or None."""
        return self.listed.wanted if self.listed.configuration == found_under else None

    def in_force(self, listed: WitnessList, now: float) -> None:
        """Take the list that came into force."""
        before, self.listed = set(left_out(self.listed)), listed
        answered, self._answered = self._answered, set()
        if before != set(left_out(listed)):
            self._begin(now)
            return
        for address in answered & before:
            self._pauses[address] = min(2 * self._pauses[address], _MOST_S)
            self._look_at[address] = now + self._pauses[address]

    def to_tell(self, secrets: tuple[tuple[int, bytes], ...]) -> tuple[str, ...]:
        """Return whom to tell the secrets that are valid now; each is tried once."""
        if secrets == self._secrets:
            return ()
        self._secrets = secrets
        return self.listed.witnesses

    def _begin(self, now: float) -> None:
        missing = left_out(self.listed)
        self._pauses = dict.fromkeys(missing, _LOOK_S)
        self._look_at = dict.fromkeys(missing, now + _LOOK_S)


def keep_up(
    upkeep: WitnessUpkeep,
    looking: AbstractContextManager[Any],
    secrets: tuple[tuple[int, bytes], ...],
    clock: Callable[[], float],
) -> Generator[TellSecrets | AskWhetherThere | ListAgain, Any, None]:
    """Tell those that serve of new secrets, and look after those that were left out.

    ``looking``: a lock that is held while ``upkeep`` is looked at or changed, here and elsewhere.
    """
    with looking:
        configuration, told = upkeep.listed.configuration, upkeep.to_tell(secrets)
        missing = upkeep.missing(clock())
    if told:
        yield TellSecrets(told, configuration)
    if not missing:
        return
    answering: Collection[str] = yield AskWhetherThere(missing)
    if answering:
        with looking:
            for address in answering:
                upkeep.answers(address)
        yield ListAgain(configuration)
