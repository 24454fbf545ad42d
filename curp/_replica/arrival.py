"""The arrival of a call at a group: its bytes, conflict keys and acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curp._core.key_locks import KeyLock
from rifl._stores.held_answers import HeldAnswers
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader


class Arrival:
    """What a group needs of a call beside the call: its bytes, keys and acknowledgements."""

    __slots__ = (
        "completed",
        "configuration",
        "covered",
        "deterministic",
        "first_incomplete",
        "keys",
        "reads",
        "request",
        "shared",
        "turn",
    )

    def __init__(
        self,
        request: bytes,
        keys: frozenset[int],
        configuration: int,
        first_incomplete: int,
        completed: Any,
        *,
        reads: bool = False,
        deterministic: bool = True,
        covered: bool = True,
    ) -> None:
        self.request = request
        self.keys = keys
        self.configuration = configuration
        self.first_incomplete = first_incomplete
        self.completed = completed
        self.reads = reads
        self.deterministic = deterministic
        self.covered = covered
        self.turn: KeyLock | None = None
        # Where the turn is a whole batch's.
        self.shared: SharedLock | None = None


class SharedLock:
    """Those of a batch that have one turn, which the last of them gives back."""

    __slots__ = ("attempts",)

    def __init__(self) -> None:
        self.attempts: set[Attempt] = set()


def arrival_of(call: Call) -> Arrival:
    """Return a call's arrival; of one that came without, one that runs nothing."""
    found: Arrival | None = call.extra
    if found is None:
        # A resolution: nothing runs, and it conflicts with nothing that does.
        found = call.extra = Arrival(b"", frozenset(), 0, 1, (), deterministic=False)
    return found


def arrived(attempt: Attempt) -> Arrival:
    """Return the arrival of a call that is to run; raises ``BadHeader`` if it has none."""
    found: Arrival | None = attempt.call.extra
    if found is None:
        # Its request could not be replayed: the group has not seen it.
        raise BadHeader(
            f"{attempt.call.method} is not the group's: its servicer was not added to the "
            "replica's registrar"
        )
    return found


class GroupAnswers(HeldAnswers):
    """Answers that a leader holds: acknowledgements are of the arrival, and go to the log."""

    def acknowledged(self, call: Call) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return what the call's header said."""
        arrival = arrival_of(call)
        return arrival.first_incomplete, arrival.completed
