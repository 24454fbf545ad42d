"""The queue of those who write to a SQLite file: handlers, and the journal (DESIGN §6)."""

from __future__ import annotations

import collections
import enum

from rifl._stores.pending import Pending

# A commit waits no longer than this after the last entry came, and this in all.
QUIET_S = 0.002
LONGEST_S = 0.008
# A transaction takes no further handlers after so many, and after this.
MOST_HANDLERS = 64
OPEN_S = 0.05
# Handlers of one run that follow each other while others wait.
MOST_IN_A_ROW = 16
# Whose turn has not come by then gives up: a handler does not end.
LONGEST_WAIT_S = 10.0


class ExpectedCommit:
    """Expects of the next commit what came with the last two, whichever were more.

    Callers that waited for one commit come again together: answered, they make their
    next calls, and the first of these would have an fsync, and many changes of
    thread, to itself. A caller on its own is expected to come alone, and never
    waits. One that stays away is waited for twice.

    No clock and no lock: the journal asks and tells under its own.
    """

    def __init__(self) -> None:
        self.expected = 1
        self._last = 1

    def taken(self, entries: int) -> None:
        """Learn how many went into a commit; one of acknowledgements only tells nothing."""
        if entries:
            self.expected = max(entries, self._last)
            self._last = entries


class Next(enum.Enum):
    """What the caller has to do next."""

    # The file is its own.
    GO = "go"
    # Until its turn comes, or until the transaction it was in has ended.
    WAIT = "wait"
    # It commits the open transaction.
    COMMIT = "commit"
    # It waits for others to come, and asks again.
    GATHER = "gather"
    # The next one of its run has the turn, if it comes at once; else it is passed on.
    KEPT = "kept"


_COMMIT, _GO, _WAIT, _GATHER = Next.COMMIT, Next.GO, Next.WAIT, Next.GATHER


class SharedTransaction:
    """Handlers whose effects are in one transaction; ``done`` once its fate is known.

    ``error``: why it was not committed; None if it was. ``unknown``: that is not known.
    ``checked``: the file is where it was, as was seen since it was begun.
    """

    # Set on the class, not for every one.
    handlers = 0
    checked = False
    # Whether a thread waits for others to come, and how many had when it last looked.
    gathered = False
    seen = 0
    error: Exception | None = None
    unknown = False

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.done = Pending()


class WriteQueue:
    """Hands the right to write from one to the next, in the order they came.

    Handlers follow each other in one open transaction; the journal has the file to
    itself. Invariants:

    1. At most one has the file: a handler in its turn, or who begins or commits.
    2. An open transaction that no handler works in has a thread that gathers for it, and
       commits it in the end.
    3. A waiter is overtaken only by handlers of the open transaction while no one has the
       file, and by a few that follow one of their own run at once.
    4. No transaction is open while the journal has the file.

    No clock and no lock: its owner has both. Those who wait are told by the
    ``Pending`` they were given, outside the lock.
    """

    def __init__(self) -> None:
        self.group: SharedTransaction | None = None
        self._held = False
        self._waiting: collections.deque[tuple[Pending, bool]] = collections.deque()
        self._expected_commit = ExpectedCommit()
        # The run for which the turn is kept, and how many of it had it in a row.
        self._kept: object = None
        self._in_a_row = 0

    def arrive(self, *, alone: bool, run: object = None) -> Next | Pending:
        """GO, or what is done when the turn comes; COMMIT what others left open first, then GO.

        ``alone``: outside any handlers' transaction. ``run``: of handlers that follow each other.
        """
        if run is not None and run is self._kept:
            self._kept = None
            return _GO
        if self._held:
            waiter = Pending()
            self._waiting.append((waiter, alone))
            return waiter
        self._held = True
        return _COMMIT if alone and self.group is not None else _GO

    def leave(self, waiter: Pending) -> bool:
        """No longer wait; False if its turn has come: then the file must be handed on."""
        for at, (other, _) in enumerate(self._waiting):
            if other is waiter:
                del self._waiting[at]
                return True
        return False

    def opened(self, now: float) -> SharedTransaction:
        """Note that the holder of the file began a transaction."""
        self.group = SharedTransaction(now)
        return self.group

    def ended(
        self, group: SharedTransaction, now: float, *, more: bool = False, run: object = None
    ) -> tuple[Next, Pending | None]:
        """End a handler's turn: what it does next, and whose turn it is.

        ``more``: another one is about to come, of the same ``run``, if it is one.
        """
        group.handlers += 1
        overtaken = self._in_a_row if self._waiting else 0
        if more and run is not None and overtaken < MOST_IN_A_ROW and self._goes_on(group, now):
            self._in_a_row += 1
            self._kept = run
            return Next.KEPT, None
        return self._next(group, now, more=more)

    def passed_on(
        self, group: SharedTransaction | None, now: float, run: object
    ) -> tuple[Next, Pending | None] | None:
        """Give up the turn that was kept for a run, as ``ended``; None: it came, or had none."""
        if self._kept is not run or group is None:
            return None
        self._kept = None
        return self._next(group, now, more=True)

    def _next(
        self, group: SharedTransaction, now: float, *, more: bool
    ) -> tuple[Next, Pending | None]:
        self._in_a_row = 0
        if self._waiting:
            return self.handed_on(group, now)
        young = (
            group.handlers < self._expected_commit.expected and now - group.opened_at < LONGEST_S
        )
        if young or (more and self._has_room(group, now)):
            self._held = False
            if group.gathered:
                return _WAIT, None
            group.gathered, group.seen = True, group.handlers
            return _GATHER, None
        return _COMMIT, None

    def handed_on(self, group: SharedTransaction, now: float) -> tuple[Next, Pending | None]:
        """Give up a turn in an open transaction: the same, without a handler's effects."""
        if self._waiting and self._goes_on(group, now):
            return _WAIT, self._waiting.popleft()[0]
        return _COMMIT, None

    def _goes_on(self, group: SharedTransaction, now: float) -> bool:
        """Whether another handler may come into this transaction: the journal does not wait."""
        return self._has_room(group, now) and not (self._waiting and self._waiting[0][1])

    @staticmethod
    def _has_room(group: SharedTransaction, now: float) -> bool:
        return group.handlers < MOST_HANDLERS and now - group.opened_at < OPEN_S

    def gathered(self, group: SharedTransaction, now: float) -> Next:
        """Decide when none came for a while: COMMIT, GATHER again, or WAIT for the commit."""
        if self.group is not group:
            return _WAIT
        if self._held:
            return _GATHER
        came, group.seen = group.handlers > group.seen, group.handlers
        if came and now - group.opened_at < LONGEST_S:
            return _GATHER
        self._held = True
        return _COMMIT

    def closed(self, group: SharedTransaction) -> None:
        """Note that the open transaction has ended; who ended it has the file."""
        self._expected_commit.taken(group.handlers)
        self.group = None

    def released(self) -> Pending | None:
        """Release the file; return its next holder."""
        if self._waiting:
            return self._waiting.popleft()[0]
        self._held = False
        return None
