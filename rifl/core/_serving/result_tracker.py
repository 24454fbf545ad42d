"""The server's side of the bookkeeping for one client (RIFL §3.3, ResultTracker)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import check_acknowledgements
from rifl.core._shared.completed_set import CompletedSet
from rifl.core._shared.errors import WindowExceeded
from rifl.core._shared.identity import DEFAULT_WINDOW

_IN_PROGRESS = object()
# Acknowledged ranges far beyond first incomplete that are remembered: the bound
# on distance, far larger than any honest client's window needs.
_FAR_RANGES = 4096


class ResultTracker:
    """Knows which of one client's calls run, are recorded, or are acknowledged.

    Invariants:

    1. A seq is ``NEW`` at most once between two ``abandon``s of it.
    2. Acknowledgements only move forward, and an acknowledged seq stays
       ``STALE``. A call is forgotten only when its acknowledgement is remembered:
       what a peer acknowledges beyond thousands of scattered ranges keeps its
       record, and its room in the window, until first incomplete passes it.
    3. At most ``window`` calls are known (in progress, or completed and not
       acknowledged), so memory is bounded whatever the peer sends.

    Records are opaque. Time and memory are proportional to what is
    unacknowledged, never to the distance between seqs. Not thread-safe.
    """

    __slots__ = (
        "_ahead",
        "_calls",
        "_client_id",
        "_far_ranges",
        "_released",
        "_window",
        "first_incomplete",
    )

    def __init__(
        self,
        window: int = DEFAULT_WINDOW,
        *,
        client_id: int = 0,
        released: list[tuple[int, int]] | None = None,
    ) -> None:
        """``released``: takes this client's id and each seq that is forgotten, if anybody asks."""
        if window < 1:
            raise ValueError("window must be at least 1")
        self._window = window
        self._far_ranges = max(_FAR_RANGES, window + 64)
        # The acknowledged seqs, once some are acknowledged above ``first_incomplete``; None
        # while all that are lie below it.
        self._ahead: CompletedSet | None = None
        self._calls: dict[int, Any] = {}
        self._client_id = client_id
        self._released = released
        # As the client's newest header said it; the first gap of ``_ahead`` can be higher.
        self.first_incomplete = 1

    def begin(
        self, seq: int, first_incomplete: int = 1, completed: Sequence[tuple[int, int]] = ()
    ) -> Verdict:
        """Decide about an arriving call; ``NEW`` means it is in progress from now on.

        ``completed`` are inclusive ranges. Raises ``BadHeader``, leaving no
        trace, for numbers that do not fit together, and ``WindowExceeded`` for
        a new call without room; the header's acknowledgements are applied
        before that is judged, and stay applied.
        """
        check_acknowledgements(seq, first_incomplete, completed)
        return self.admit(seq, first_incomplete, completed)

    def admit(
        self, seq: int, first_incomplete: int, completed: Sequence[tuple[int, int]]
    ) -> Verdict:
        """Do what ``begin`` does for numbers that were checked before."""
        if self.claim(seq, first_incomplete, completed):
            return Verdict.NEW
        verdict = self.peek(seq)
        self.acknowledge(first_incomplete, completed)
        return verdict

    def claim(self, seq: int, first_incomplete: int, completed: Sequence[tuple[int, int]]) -> bool:
        """Begin a call if it is new, by numbers that were checked before.

        False, with nothing changed, if it is not; see ``peek``. Raises
        ``WindowExceeded`` as ``begin`` does.
        """
        calls = self._calls
        if (
            seq in calls
            or seq < self.first_incomplete
            or (self._ahead is not None and seq in self._ahead)
        ):
            return False
        if completed or first_incomplete > self.first_incomplete:
            self.acknowledge(first_incomplete, completed)
        if len(calls) >= self._window:
            raise WindowExceeded(f"{self._window} calls are unacknowledged")
        calls[seq] = _IN_PROGRESS
        return True

    def peek(self, seq: int) -> Verdict:
        """Tell what ``begin`` would decide, changing nothing."""
        state = self._calls.get(seq)
        if state is not None:
            return Verdict.IN_PROGRESS if state is _IN_PROGRESS else Verdict.COMPLETED
        return Verdict.STALE if self._is_acknowledged(seq) else Verdict.NEW

    def is_stale(self, seq: int) -> bool:
        """Tell whether ``begin`` would decide ``STALE``, changing nothing."""
        return seq not in self._calls and self._is_acknowledged(seq)

    def acknowledge(self, first_incomplete: int, completed: Iterable[tuple[int, int]] = ()) -> None:
        """Forget the calls that the client is done with; only moves forward."""
        calls, ahead = self._calls, self._ahead
        before = self.first_incomplete
        if first_incomplete > before:
            self.first_incomplete = first_incomplete
            if ahead is not None:
                ahead.advance_to(first_incomplete)
                if not ahead.scattered and ahead.first_incomplete == first_incomplete:
                    self._ahead = None
            if first_incomplete == before + 1:
                # One call after the other, as from one caller.
                if calls.pop(before, None) is not None and self._released is not None:
                    self._released.append((self._client_id, before))
            elif calls:
                self._release(before, first_incomplete - 1)
        for first, last in completed:
            if self._ahead is None:
                self._ahead = CompletedSet(self.first_incomplete, max_ranges=self._far_ranges)
            self._ahead.add(first, last)
            if calls:
                self._release(first, last)

    def frees(self, first_incomplete: int, completed: Sequence[tuple[int, int]]) -> bool:
        """Whether a record goes if this is acknowledged."""
        return any(
            seq < first_incomplete or any(first <= seq <= last for first, last in completed)
            for seq, state in self._calls.items()
            if type(state) is tuple
        )

    def finish(self, seq: int, record: object) -> None:
        """Keep the record of a call in progress.

        Dropped if the seq was acknowledged meanwhile, or is not in progress:
        the first record stands.
        """
        if self._calls.get(seq) is _IN_PROGRESS:
            self._calls[seq] = (record,)

    def abandon(self, seq: int) -> None:
        """Make an unfinished call new again; ignored for any other."""
        if self._calls.get(seq) is _IN_PROGRESS:
            del self._calls[seq]

    def restore(self, seq: int, record: object) -> None:
        """Put back a record read from a log or a store, unless it is acknowledged."""
        if not self._is_acknowledged(seq):
            self._calls[seq] = (record,)

    def record(self, seq: int) -> Any | None:
        """Return the record of ``seq``, None if there is none."""
        state = self._calls.get(seq)
        return state[0] if type(state) is tuple else None

    def completed(self) -> list[tuple[int, Any]]:
        """Return the completed calls that are not acknowledged, as (seq, record)."""
        return [(seq, state[0]) for seq, state in self._calls.items() if type(state) is tuple]

    def completed_ranges(self) -> list[tuple[int, int]]:
        """Return the acknowledged ranges from ``first_incomplete`` on, to be persisted."""
        if self._ahead is None:
            return []
        ranges, beyond = self._ahead.ranges(), self._ahead.first_incomplete
        if beyond > self.first_incomplete:
            ranges.insert(0, (self.first_incomplete, beyond - 1))
        return ranges

    def __len__(self) -> int:
        """How many calls are in progress, or completed and unacknowledged."""
        return len(self._calls)

    def _is_acknowledged(self, seq: int) -> bool:
        return seq < self.first_incomplete or (self._ahead is not None and seq in self._ahead)

    def _release(self, first: int, last: int) -> None:
        calls, noted = self._calls, self._released
        seqs: Iterable[int]
        if last - first < len(calls):
            seqs = range(first, last + 1)
        else:
            seqs = [seq for seq in calls if first <= seq <= last]
        for seq in seqs:
            # A full set ignores far ranges; to forget such a call were to run it again.
            if seq in calls and self._is_acknowledged(seq):
                del calls[seq]
                if noted is not None:
                    noted.append((self._client_id, seq))
