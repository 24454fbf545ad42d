"""Reads that the leader answers by itself, while its lease is valid (invariant 10)."""

from __future__ import annotations

from collections.abc import Callable

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
        """Whether nobody else may lead by now, as far as the clock here tells."""
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
