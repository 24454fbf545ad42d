"""Idle clients, each one flat value: what a million of them cost is memory (DESIGN §9).

A client that calls has a tracker, dictionaries and objects, 1.5 KB of them. What an
idle one must not lose fits into a hundred bytes and its last answer.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from _rifl_ground.refusals import Outcome
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._shared.call import acknowledges_more
from rifl.core._shared.record import CompletionRecord

# Beyond this many unacknowledged calls a client is not idle, only silent.
_MOST_CALLS = 4
_Kept = tuple[bytes | None, CompletionRecord | None, int]
# What is known of a client: its tracker's state, where it is registered, whether it
# is known from an earlier incarnation.
Rested = tuple[int, list[tuple[int, int]], list[tuple[int, _Kept]], set[str], bool]


class IdleClients:
    """What is known of idle clients, by id. In memory only. Not thread-safe.

    Nothing is lost by resting: ``take`` gives back what ``put`` was given.
    """

    def __init__(self) -> None:
        self._clients: dict[int, bytes] = {}
        # Places where clients are registered: few, and long names.
        self._places: list[str] = []
        # Unacknowledged calls of all of them.
        self.calls = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client_id: int) -> bool:
        return client_id in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._clients))

    def put(
        self, client_id: int, tracker: ResultTracker, registered: Iterable[str], recovered: bool
    ) -> bool:
        """Take a client's state over; False, with nothing done, if it is too much.

        No call of it may run, and nothing released may be waiting to be deleted.
        """
        if len(tracker) > _MOST_CALLS:
            return False
        calls = [(seq, kept[0], _flat(kept[1]), kept[2]) for seq, kept in tracker.completed()]
        self._clients[client_id] = marshal.dumps(
            (
                tracker.first_incomplete,
                tracker.completed_ranges(),
                calls,
                tuple(self._place(name) for name in registered),
                recovered,
            )
        )
        self.calls += len(calls)
        return True

    def take(self, client_id: int) -> Rested | None:
        """Return what was put, which is here no longer; None if nothing was."""
        packed = self._clients.pop(client_id, None)
        if packed is None:
            return None
        # Our own bytes, which never leave this process.
        first, ranges, calls, places, recovered = marshal.loads(packed)  # noqa: S302
        self.calls -= len(calls)
        kept = [(seq, (fingerprint, _record(flat), seed)) for seq, fingerprint, flat, seed in calls]
        return first, ranges, kept, {self._places[at] for at in places}, recovered

    def keeps(self, client_id: int, identity: int | bytes) -> bool:
        """Whether a client is here, and an answer to this call of it."""
        packed = self._clients.get(client_id)
        if packed is None:
            return False
        _, _, calls, *_ = marshal.loads(packed)  # noqa: S302
        return any(seq == identity for seq, *_ in calls)

    def knows_less(
        self, client_id: int, first_incomplete: int, completed: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether a client is here, and has acknowledged less than this."""
        packed = self._clients.get(client_id)
        if packed is None:
            return False
        before, ranges, *_ = marshal.loads(packed)  # noqa: S302
        return acknowledges_more(first_incomplete, completed, before, ranges)

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places.append(name)
        return self._places.index(name)


def _flat(record: CompletionRecord | None) -> tuple[Any, ...] | bytes | None:
    if record is None:
        return None
    if record == CompletionRecord(response=record.response) and record.response is not None:
        # Most answers.
        return record.response
    return (*record[:5], record.outcome.value, *record[6:])


def _record(flat: tuple[Any, ...] | bytes | None) -> CompletionRecord | None:
    if flat is None:
        return None
    if isinstance(flat, bytes):
        return CompletionRecord(response=flat)
    return CompletionRecord._make((*flat[:5], Outcome(flat[5]), *flat[6:]))
