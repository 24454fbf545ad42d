"""Locks on conflict keys: operations that conflict run one after the other (CURP §3.1)."""

from __future__ import annotations

from typing import Final

from rifl.core._shared.invariant import invariant


class KeyLock:
    """One operation's place in the order of execution, until it is given back.

    ``keys`` empty: it conflicts with everything. Two that only read never conflict.
    """

    __slots__ = ("_asked_of", "_behind", "_blockers", "given_back", "keys", "reads")

    def __init__(self, keys: frozenset[int], *, reads: bool = False) -> None:
        self.keys: Final = keys
        self.reads: Final = reads
        self.given_back = False
        # How many earlier ones it waits for, and which later ones wait for it.
        self._blockers = 0
        self._behind: list[KeyLock] = []
        self._asked_of: KeyLocks | None = None

    @property
    def has_come(self) -> bool:
        """Whether the operation may run."""
        return not self._blockers


class _KeyTurns:
    """The turns on one key (or on all of them), as far as they are in a newcomer's way."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: KeyLock | None = None
        # The readers that came after the newest writer.
        self.readers: set[KeyLock] = set()


class KeyLocks:
    """Grants turns in the order they were asked for, as far as operations conflict.

    Invariants:

    1. Two conflicting turns are never had at once, and the one asked for first comes
       first.
    2. No deadlock: a turn waits only for turns that were asked for earlier.

    Not thread-safe. A turn costs time in proportion to its keys and to the readers it
    waits for; one on everything, to all that were not given back.
    """

    def __init__(self) -> None:
        self._by_key: dict[int, _KeyTurns] = {}
        # Turns that conflict with everything.
        self._all = _KeyTurns()
        # Turns with keys that were not given back yet.
        self._keyed: set[KeyLock] = set()

    def __len__(self) -> int:
        """How many turns were not given back."""
        return len(self._keyed) + (self._all.writer is not None) + len(self._all.readers)

    def __contains__(self, turn: KeyLock) -> bool:
        """Whether the turn was asked for here, and not given back."""
        return turn._asked_of is self and not turn.given_back

    def ask(self, turn: KeyLock) -> bool:
        """Ask for the turn; True if the turn has come already."""
        turn._asked_of = self
        blockers: set[KeyLock] = set()
        if turn.keys:
            self._add_blockers(turn, self._all, blockers)
            for key in turn.keys:
                turns = self._by_key.get(key)
                if turns is None:
                    turns = self._by_key[key] = _KeyTurns()
                self._add_blockers(turn, turns, blockers)
                self._join(turn, turns)
            self._keyed.add(turn)
        else:
            self._add_blockers(turn, self._all, blockers)
            blockers.update(other for other in self._keyed if not (other.reads and turn.reads))
            self._join(turn, self._all)
        turn._blockers = len(blockers)
        for other in blockers:
            other._behind.append(turn)
        return not blockers

    def give_back(self, turn: KeyLock) -> list[KeyLock]:
        """Release a turn, granted or not; return the turns that this grants."""
        if turn.given_back:
            return []
        turn.given_back = True
        come: list[KeyLock] = []
        # One that had not come yet keeps its place until it would have: those behind it
        # must not overtake those before it.
        over = [turn] if turn.has_come else []
        while over:
            for other in self._end(over.pop()):
                (over if other.given_back else come).append(other)
        return come

    def _end(self, turn: KeyLock) -> list[KeyLock]:
        """Take a turn out of its lines; return those that wait for nothing more."""
        if turn.keys:
            self._keyed.discard(turn)
            for key in turn.keys:
                turns = self._by_key[key]
                self._leave(turn, turns)
                if turns.writer is None and not turns.readers:
                    del self._by_key[key]
        else:
            self._leave(turn, self._all)
        for other in turn._behind:
            other._blockers -= 1
            invariant(other._blockers >= 0, "a turn is waited for twice")
        behind, turn._behind = turn._behind, []
        return [other for other in behind if other.has_come]

    @staticmethod
    def _add_blockers(turn: KeyLock, turns: _KeyTurns, blockers: set[KeyLock]) -> None:
        if turns.writer is not None:
            blockers.add(turns.writer)
        if not turn.reads:
            blockers |= turns.readers

    @staticmethod
    def _join(turn: KeyLock, turns: _KeyTurns) -> None:
        if turn.reads:
            turns.readers.add(turn)
        else:
            turns.writer = turn
            turns.readers = set()

    @staticmethod
    def _leave(turn: KeyLock, turns: _KeyTurns) -> None:
        turns.readers.discard(turn)
        if turns.writer is turn:
            turns.writer = None
