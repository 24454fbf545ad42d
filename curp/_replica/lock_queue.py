"""The queue for locks on conflict keys: calls that wait, and who is woken when one has its."""

from __future__ import annotations

from curp._core.key_locks import KeyLock, KeyLocks
from rifl._stores.pending import Pending


class LockQueue:
    """The turns of one leadership. Under the store's lock, so nobody is woken in here."""

    def __init__(self) -> None:
        self._turns = KeyLocks()
        self._waiting: dict[KeyLock, Pending] = {}

    def __len__(self) -> int:
        """How many have a turn, or wait for one."""
        return len(self._turns)

    def __contains__(self, turn: KeyLock) -> bool:
        """Whether a turn was not given back yet."""
        return turn in self._turns

    def stand(self, turn: KeyLock) -> Pending | None:
        """Ask for a turn; what is done when it has come, None if it has."""
        if self._turns.ask(turn):
            return None
        pending = self._waiting[turn] = Pending()
        return pending

    def leave(self, turn: KeyLock) -> list[Pending]:
        """Give a turn back, or wait for it no longer; who is to be woken now."""
        self._waiting.pop(turn, None)
        return [
            pending
            for come in self._turns.give_back(turn)
            if (pending := self._waiting.pop(come, None)) is not None
        ]

    def waiting(self) -> list[Pending]:
        """Return everyone whose turn has not come."""
        return list(self._waiting.values())
