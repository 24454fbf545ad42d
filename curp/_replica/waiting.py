"""The waits in a group's store: for a turn, for what a read conflicts with, for one another."""

from __future__ import annotations

from collections.abc import Callable

from curp._core.key_locks import KeyLock, KeyLocks
from curp._core.read_lease import ReadLease
from rifl._stores.pending import Pending
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.errors import Deposed


class Reads:
    """Judges when a read may be answered. Any thread.

    Invariant 10 (DESIGN §7): when what it conflicts with is synced and, after that, the
    read lease is found valid.
    """

    def __init__(self, boottime: Callable[[], float]) -> None:
        """``boottime``: the seconds that leases are counted by."""
        self._boottime = boottime
        self.lease: ReadLease | None = None

    def may_lead(self) -> bool:
        """Return whether no other replica may lead by now, as far as the clock here tells."""
        return self.lease is not None and not self.lease.over(self._boottime())

    def check(self, attempt: Attempt) -> None:
        """Raise ``Deposed`` if a read whose state was read may not be answered."""
        # The clock is asked after the state was read: a lease that ends in between
        # would let a later leader's write be missed.
        lease = self.lease
        if attempt.ended or lease is None or not lease.valid(self._boottime()):
            raise Deposed("the leader cannot tell whether it still leads: ask again")

    def answered(
        self, attempt: Attempt, synced: Pending, end: Callable[[Attempt], None]
    ) -> Pending:
        """Return what is done when a read may be answered that waits for ``synced``.

        ``end`` is called with it before; nothing is kept of it.
        """
        answered = Pending()

        def judge(done: Pending) -> None:
            try:
                if done.error is not None:
                    raise done.error
                self.check(attempt)
            except Exception as error:  # noqa: BLE001 - passed on
                end(attempt)
                answered.fail(error)
            else:
                end(attempt)
                answered.succeed()

        synced.add_callback(judge)
        return answered


class LockQueue:
    """The turns of one leadership. Under the store's lock, so no thread is woken in here."""

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
        """Give a turn back, or wait for it no longer; return what must be woken now."""
        self._waiting.pop(turn, None)
        return [
            pending
            for come in self._turns.give_back(turn)
            if (pending := self._waiting.pop(come, None)) is not None
        ]

    def waiting(self) -> list[Pending]:
        """Return everyone whose turn has not come."""
        return list(self._waiting.values())


def wake_all(pendings: list[Pending]) -> None:
    """Wake everyone whose time has come."""
    for pending in pendings:
        pending.succeed()


def after_both(first: Pending | None, second: Pending | None) -> Pending | None:
    """Return what is done when both are; None if there is nothing to wait for."""
    if first is None or second is None:
        return first or second
    both = Pending()

    def ended(last: Pending) -> None:
        if last.error is not None:
            both.fail(last.error)
        else:
            both.succeed()

    def after_first(done: Pending) -> None:
        if done.error is not None:
            both.fail(done.error)
        else:
            second.add_callback(ended)

    first.add_callback(after_first)
    return both
