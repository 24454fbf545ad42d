"""The rule of one attempt at a group: when its answer is final (CURP §3.2.1; DESIGN §7)."""

from __future__ import annotations

import enum
from typing import NamedTuple

from _rifl_ground.refusals import Outcome
from curp._core.witness_table import WitnessVerdict
from rifl.core._shared.errors import LeaseExpired


class AttemptStep(enum.Enum):
    """What the shell does next for an attempt."""

    # For the leader, for witnesses, or for as long as they may take.
    WAIT = "wait"
    # Ask the leader to sync the call.
    SYNC = "sync"
    # The leader's answer stands unchanged.
    FINAL = "final"
    # The leader's refusal stands, but the call may run yet: its outcome is unknown.
    UNKNOWN = "unknown"
    # Nothing stands: the outcome is unknown, and the client sends the same identity again.
    AGAIN = "again"


class SyncVerdict(enum.IntEnum):
    """What a leader says to a sync request, by the numbers of ``curp.v1.SyncReply``."""

    SYNCED = 1
    NOT_KNOWN = 2
    OTHER_CONFIGURATION = 3


class LeaderAnswer(NamedTuple):
    """The leader's answer as this rule sees it.

    ``outcome``: its label; EXECUTED for OK without one; None for an error that says
    nothing of the call (the transport's). ``synced``: it is marked as being in the
    log. ``reason``: of a refusal; ``first``: of the call's first attempt.
    """

    outcome: Outcome | None
    synced: bool = False
    reason: str = ""
    first: bool = False


class GroupCall:
    """Decides about one attempt, sent to the leader and recorded on all witnesses at once.

    Every event returns the step that follows; after SYNC come ``sync_answered`` and
    whatever witnesses still say. At FINAL, UNKNOWN or AGAIN the attempt is over.
    ``fast`` then tells that it took one round trip by the witnesses' word;
    ``refresh``, at any time, that the configuration it was sent under is not, or may
    not be, in force any more.

    Invariants (DESIGN §7):

    - 1: an answer that is not marked is final only when all witnesses accepted the
      call, or the leader said that it is synced.
    - 9: so is the answer of a duplicate: what stands for it is asked for anew.
    - 13: while a witness may hold the call, no refusal of it says that it did not run,
      unless that is itself in the log.

    No I/O, no clock; serialised by the shell.
    """

    __slots__ = ("_accepted", "_answer", "_pending", "_refused", "_syncing", "fast", "refresh")

    def __init__(self, witnesses: int) -> None:
        """``witnesses``: how many it was sent to; at least one."""
        self._pending = witnesses
        self._accepted = 0
        self._refused = False
        self._syncing = False
        self._answer: LeaderAnswer | None = None
        self.fast = False
        self.refresh = False

    def leader_answered(self, answer: LeaderAnswer) -> AttemptStep:
        """Take what the leader said."""
        self._answer = answer
        outcome = answer.outcome
        if outcome is None or answer.synced:
            return AttemptStep.FINAL
        if outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
            return self._judge()
        if not self._pending and not self._accepted:
            return AttemptStep.FINAL
        if answer.reason == LeaseExpired.reason and answer.first:
            # A client id that is gone for this leader may live again for the next: a
            # new identity for a call that a witness holds would be a second call.
            return AttemptStep.AGAIN
        return AttemptStep.UNKNOWN if outcome is Outcome.NOT_EXECUTED else AttemptStep.FINAL

    def witness_answered(self, verdict: WitnessVerdict | None) -> AttemptStep:
        """Take a witness's verdict; None: it could not be asked, or did not say."""
        self._pending -= 1
        if verdict is WitnessVerdict.ACCEPTED:
            self._accepted += 1
        else:
            self._refused = True
            if verdict is None:
                # It may hold the call all the same.
                self._accepted += 1
        if verdict in (WitnessVerdict.OTHER_CONFIGURATION, WitnessVerdict.FROZEN):
            self.refresh = True
        return AttemptStep.WAIT if self._answer is None or self._syncing else self._judge()

    def patience_over(self) -> AttemptStep:
        """Wait no longer for witnesses: the leader answered, and may sync."""
        if self._answer is None or self._syncing:
            return AttemptStep.WAIT
        self._refused = True
        return self._judge()

    def sync_answered(self, verdict: SyncVerdict | None) -> AttemptStep:
        """Take the leader's answer to a sync request; None: there is none."""
        if verdict is SyncVerdict.SYNCED:
            return AttemptStep.FINAL
        # Another leader, or this one without the call: what it answered may be lost.
        self.refresh = True
        return AttemptStep.AGAIN

    def _judge(self) -> AttemptStep:
        if self._refused:
            self._syncing = True
            return AttemptStep.SYNC
        if self._pending:
            return AttemptStep.WAIT
        self.fast = True
        return AttemptStep.FINAL
