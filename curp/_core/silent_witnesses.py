"""Silent witnesses, and when calls are recorded on them again (DESIGN §7)."""

from __future__ import annotations

_FIRST_S = 0.1
_MOST_S = 5.0


class SilentWitnesses:
    """Which witnesses were silent: while one is suspect, calls are not recorded.

    All witnesses of a configuration must accept a call (invariant 1), so with a silent one
    a call would wait for its patience, and then take a second round trip for a sync;
    sent to the leader alone it is synced before its answer, in one.

    1. A witness is suspect when a call waited for it in vain, and it was not heard of
       since that call began: one that is only slow for some calls is not.
    2. It stays suspect for 0.1 s, then one call is recorded again, while others are
       still not; after each such call twice as long, at most 5 s.
    3. Once it is heard of, it is not suspect.

    A guess that nothing but speed depends on: races of threads are harmless. No clock:
    times are seconds of the caller's.
    """

    __slots__ = ("_heard_at", "_until")

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}
        # For each witness that was silent: for how long it is left out, and until when.
        self._until: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        """How many witnesses are suspect."""
        return len(self._until)

    def heard(self, witness: str, now: float) -> None:
        """Note that a witness answered."""
        self._heard_at[witness] = now
        if self._until:
            self._until.pop(witness, None)

    def silent(self, witness: str, since: float, now: float) -> None:
        """Note that a call which began at ``since`` waited for a witness in vain."""
        if self._heard_at.get(witness, since - 1.0) < since:
            self._until.setdefault(witness, (_FIRST_S, now + _FIRST_S))

    def may_record(self, now: float) -> bool:
        """Return whether to record a call now; after a suspect's pause, one call may."""
        suspects = list(self._until.items())
        if any(now < until for _, (_, until) in suspects):
            return False
        for witness, (term_s, _) in suspects:
            term_s = min(2 * term_s, _MOST_S)
            self._until[witness] = (term_s, now + term_s)
        return True
