"""The upkeep of a leadership's witness list (DESIGN §7, invariants 2 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from curp._core.witness_list import WitnessList, left_out
from curp._core.witness_table import WitnessVerdict

_LOOK_S = 1.0
_MOST_S = 60.0


class TellSecrets(NamedTuple):
    """Tell witnesses that serve that number the secrets that are valid now."""

    addresses: tuple[str, ...]
    configuration: int


class AskWhatTheyServe(NamedTuple):
    """Ask witnesses, all at once, what they serve.

    Send back of those that answer, by their addresses, whether it is that number of this
    group's: see ``judge_serving``.
    """

    addresses: tuple[str, ...]
    configuration: int


class ListAgain(NamedTuple):
    """Put the list in force anew that is wanted, if that number still is.

    ``forgot``: of the listed ones those that do not serve it any more, with what they say.
    """

    configuration: int
    forgot: tuple[tuple[str, WitnessVerdict], ...]


class WitnessUpkeep:
    """Decides whom to ask, whom to tell, and what list to put in force anew.

    1. Witnesses are asked every second: those that could not be started, whether they answer
       by now; those that are listed, whether they forgot what they held. The thread that
       tells them what is synced hears of that, too, but an idle leader syncs nothing.
    2. The list as it was asked for is put in force anew, under the next number, when one that
       was left out answers, or when a listed one forgot; but not when another number is in
       force than that was found under: its witnesses began anew.
    3. One for which that was done is asked only after twice as long as before, a minute at
       most, since each number makes the leader wait for the log: it may refuse to be started
       (another group's, say), or forget again. Every second again when it is found to be
       listed and in order, or when others are asked for, or left out, than before.
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
        # The witnesses for which the list must be put in force anew.
        self._noted: set[str] = set()
        self._begin(now)

    def due(self, now: float) -> tuple[str, ...]:
        """Return whom to ask now what they serve."""
        due = tuple(address for address, at in self._look_at.items() if now >= at)
        for address in due:
            self._look_at[address] = now + self._pauses[address]
        return due

    def found(self, answers: Mapping[str, WitnessVerdict], configuration: int) -> ListAgain | None:
        """Take what those say that answer, whether they serve that number; what to do then."""
        if configuration != self.listed.configuration:
            return None
        listed = self.listed.witnesses
        forgot = []
        for address, verdict in answers.items():
            if address in listed and verdict is WitnessVerdict.ACCEPTED:
                self._pauses[address] = _LOOK_S
                continue
            self._noted.add(address)
            if address in listed:
                forgot.append((address, verdict))
        return ListAgain(configuration, tuple(forgot)) if self._noted else None

    def again(self, found_under: int) -> tuple[str, ...] | None:
        """Return what list to put in force, of what was found under that number; or None."""
        return self.listed.wanted if self.listed.configuration == found_under else None

    def in_force(self, listed: WitnessList, now: float) -> None:
        """Take the list that came into force."""
        before, self.listed = self.listed, listed
        noted, self._noted = self._noted, set()
        if _asked_and_left_out(before) != _asked_and_left_out(listed):
            self._begin(now)
            return
        for address in noted:
            self._pauses[address] = min(2 * self._pauses[address], _MOST_S)
            self._look_at[address] = now + self._pauses[address]

    def to_tell(self, secrets: tuple[tuple[int, bytes], ...]) -> tuple[str, ...]:
        """Return whom to tell the secrets that are valid now; each is tried once."""
        if secrets == self._secrets:
            return ()
        self._secrets = secrets
        return self.listed.witnesses

    def _begin(self, now: float) -> None:
        self._pauses = dict.fromkeys(self.listed.wanted, _LOOK_S)
        self._look_at = dict.fromkeys(self.listed.wanted, now + _LOOK_S)


def _asked_and_left_out(listed: WitnessList) -> tuple[set[str], set[str]]:
    return set(listed.wanted), set(left_out(listed))


def keep_up(
    upkeep: WitnessUpkeep,
    looking: AbstractContextManager[Any],
    secrets: tuple[tuple[int, bytes], ...],
    clock: Callable[[], float],
) -> Generator[TellSecrets | AskWhatTheyServe | ListAgain, Any, None]:
    """Tell those that serve of new secrets, and see whom to list again.

    ``looking``: a lock that is held while ``upkeep`` is looked at or changed, here and elsewhere.
    """
    with looking:
        configuration, told = upkeep.listed.configuration, upkeep.to_tell(secrets)
        due = upkeep.due(clock())
    if told:
        yield TellSecrets(told, configuration)
    if not due:
        return
    answers: Mapping[str, WitnessVerdict] = yield AskWhatTheyServe(due, configuration)
    with looking:
        again = upkeep.found(answers, configuration)
    if again is not None:
        yield again
