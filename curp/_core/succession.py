"""The succession: when a replica that follows tries to take over (DESIGN §7, invariant 10)."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from curp.log._values import Leadership

_HOLD_OFF_TERMS = 3
_CATCH_UP_TERMS = 3


class FollowerStanding(enum.Enum):
    """What a replica that follows does now."""

    # A replica's lease runs, or seems to.
    LED = "led"
    # No replica leads, and it is another one's turn.
    WAIT = "wait"
    TAKE = "take"


class Succession:
    """Decides who tries to take over when a lease is over.

    It decides whose turn it is; safety does not depend on it: a replica asks the engine, which
    grants a number only when the old lease is over (invariant 10).

    1. While a lease runs, no replica tries: the engine would refuse.
    2. One that handed its leadership over, or gave a recovery up, lets others try first, for
       three terms.
    3. One that a transfer asked for has a term's time before any other tries.
    4. One that has not applied the log to its end goes on with that first, since it would
       serve no call before, and another could: for three terms without a leader.

    No clock: ``now`` is seconds of the caller's.
    """

    def __init__(self, name: str, incarnation: str, *, term_s: float) -> None:
        """``name``: as a transfer names it. ``incarnation``: as the engine knows it."""
        self._name = name
        self._incarnation = incarnation
        self._term_s = term_s
        self._hold_off_until = -math.inf
        # Since when no replica leads; None while one does.
        self._leaderless_since: float | None = None

    def let_others_try(self, now: float) -> None:
        """Let others try first: the leadership was handed over, or a recovery given up."""
        self._hold_off_until = now + _HOLD_OFF_TERMS * self._term_s

    def leader(self, leadership: Leadership | None) -> str:
        """Return where calls should go meanwhile; empty: not known."""
        if leadership is None or leadership.expires_in_s <= 0:
            return ""
        # One that this replica itself still holds is of no use to callers.
        return "" if leadership.replica == self._incarnation else leadership.address

    def look(
        self,
        leadership: Leadership | None,
        asked_for: Callable[[], str],
        now: float,
        *,
        behind: bool = False,
    ) -> FollowerStanding:
        """Decide, by what the engine says just now.

        ``asked_for``: reads which replica a transfer named, empty for none; called when needed.
        ``behind``: the log has entries that were not applied here.
        """
        if leadership is not None and leadership.expires_in_s > 0:
            self._leaderless_since = None
            return FollowerStanding.LED
        if self._leaderless_since is None:
            self._leaderless_since = now
        if now < self._hold_off_until:
            return FollowerStanding.WAIT
        if behind and now < self._leaderless_since + _CATCH_UP_TERMS * self._term_s:
            return FollowerStanding.WAIT
        named = asked_for()
        if named and named != self._name and leadership is not None:
            patient = leadership.expires_in_s >= -self._term_s
            return FollowerStanding.WAIT if patient else FollowerStanding.TAKE
        return FollowerStanding.TAKE
