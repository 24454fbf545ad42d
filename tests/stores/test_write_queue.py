"""The queue of shared transactions: its turns, with no clock and no thread (DESIGN §6)."""

from __future__ import annotations

from random import Random

import pytest

from rifl._stores.pending import Pending
from rifl._stores.sqlite.write_queue import (
    MOST_HANDLERS,
    MOST_IN_A_ROW,
    OPEN_S,
    Next,
    SharedTransaction,
    WriteQueue,
)


class _World:
    """Handlers and a journal that come and go at random, and what must hold meanwhile."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.turns = WriteQueue()
        self.now = 0.0
        # Who has the file, and in what: a turn, the journal's, or a commit.
        self.has: Pending | None = None
        self.alone: dict[Pending, bool] = {}
        self.came: list[Pending] = []
        self.gatherer: SharedTransaction | None = None
        self.served = self.committed = 0

    def arrive(self) -> None:
        alone = self.random.random() < 0.1
        arrival = self.turns.arrive(alone=alone)
        waiter = arrival if isinstance(arrival, Pending) else Pending()
        self.alone[waiter] = alone
        if waiter is arrival:
            assert self.has is not None
            self.came.append(waiter)
            return
        assert self.has is None
        assert not self.came
        if arrival is Next.COMMIT:
            self.close()
        self.take(waiter)

    def take(self, waiter: Pending) -> None:
        self.has = waiter
        if self.alone[waiter]:
            assert self.turns.group is None
        elif self.turns.group is None:
            self.turns.opened(self.now)

    def close(self) -> None:
        group = self.turns.group
        assert group is not None
        self.committed += group.handlers
        if self.gatherer is group:
            self.gatherer = None
        self.turns.closed(group)

    def hand_to(self, waiter: Pending) -> None:
        assert waiter is self.came.pop(0)
        self.take(waiter)

    def end(self) -> None:
        """Whoever has the file is done."""
        waiter, group = self.has, self.turns.group
        if waiter is None:
            return
        self.has = None
        if self.alone[waiter]:
            self.release()
            return
        assert group is not None
        if used := self.random.random() < 0.9:
            self.served += 1
            more = self.random.random() < 0.5
            after, following = self.turns.ended(group, self.now, more=more, run=waiter)
        else:
            after, following = self.turns.handed_on(group, self.now)
        if after is Next.KEPT:
            self.keep(waiter, group)
        else:
            assert used or after is not Next.GATHER
            self.next(group, after, following)

    def next(self, group: SharedTransaction, after: Next, following: Pending | None) -> None:
        if after is Next.COMMIT:
            assert following is None
            self.close()
            self.release()
        elif following is not None:
            assert group.handlers < MOST_HANDLERS
            assert not self.alone[following]
            assert self.turns.group is group
            self.hand_to(following)
        else:
            assert (after is Next.GATHER) == (self.gatherer is None)
            self.gatherer = group

    def keep(self, run: Pending, group: SharedTransaction) -> None:
        """The next one of a run comes at once, or does not."""
        assert group.handlers < MOST_HANDLERS
        if self.random.random() < 0.7:
            following = Pending()
            self.alone[following] = False
            assert self.turns.arrive(alone=False, run=run) is Next.GO
            self.take(following)
            assert self.turns.passed_on(group, self.now, run) is None
            return
        assert self.turns.passed_on(group, self.now, object()) is None
        passed = self.turns.passed_on(group, self.now, run)
        assert passed is not None
        self.next(group, *passed)

    def release(self) -> None:
        following = self.turns.released()
        assert (following is None) == (not self.came)
        if following is not None:
            self.hand_to(following)

    def look(self) -> None:
        """Whoever gathers looks again."""
        group = self.gatherer
        if group is not None and self.turns.gathered(group, self.now) is Next.COMMIT:
            assert self.has is None
            self.close()
            self.release()

    def leave(self) -> None:
        if self.came:
            waiter = self.random.choice(self.came)
            assert self.turns.leave(waiter)
            self.came.remove(waiter)

    def check(self) -> None:
        if self.has is None:
            assert not self.came, "nobody waits for a file that nobody has"
            assert (self.turns.group is None) == (self.gatherer is None)


@pytest.mark.parametrize("seed", range(40))
def test_one_at_a_time_in_order_and_no_transaction_forgotten(seed: int) -> None:
    """Invariants 1 to 4, whatever comes in whichever order; all that was served is committed."""
    world = _World(seed)
    steps = [world.arrive] * 4 + [world.end] * 4 + [world.look, world.leave]
    for _ in range(2000):
        world.random.choice(steps)()
        world.now += world.random.random() * 0.004
        world.check()
    while world.has is not None or world.gatherer is not None:
        world.end()
        world.look()
        world.now += 0.01
    assert world.turns.group is None
    assert world.committed == world.served > 0


def test_a_transaction_takes_so_many_and_no_more() -> None:
    """It ends though others wait, when it is full or old (§6)."""
    for handlers, age_s in ((MOST_HANDLERS, 0.0), (1, OPEN_S)):
        turns = WriteQueue()
        assert turns.arrive(alone=False) is Next.GO
        group = turns.opened(0.0)
        waiting = [turns.arrive(alone=False) for _ in range(MOST_HANDLERS + 1)]
        for _ in range(handlers - 1):
            assert turns.ended(group, 0.0)[1] is waiting.pop(0)
        assert turns.ended(group, age_s) == (Next.COMMIT, None)
        turns.closed(group)
        assert turns.released() is waiting[0]


def test_who_has_its_turn_can_no_longer_leave() -> None:
    """Then the file has to be handed on (§6)."""
    turns = WriteQueue()
    turns.arrive(alone=False)
    second = turns.arrive(alone=False)
    assert isinstance(second, Pending)
    group = turns.opened(0.0)
    assert turns.ended(group, 0.0) == (Next.WAIT, second)
    assert not turns.leave(second)
    assert turns.handed_on(group, 0.0) == (Next.COMMIT, None)


def test_a_run_keeps_its_turn_for_a_few_and_no_more() -> None:
    """Then whoever waits has it, and the run comes again behind (§6, invariant 3)."""
    turns, run = WriteQueue(), object()
    turns.arrive(alone=False, run=run)
    group = turns.opened(0.0)
    other = turns.arrive(alone=False)
    for _ in range(MOST_IN_A_ROW):
        assert turns.ended(group, 0.0, more=True, run=run) == (Next.KEPT, None)
        assert isinstance(turns.arrive(alone=False, run=object()), Pending)
        assert turns.arrive(alone=False, run=run) is Next.GO
    assert turns.ended(group, 0.0, more=True, run=run) == (Next.WAIT, other)
    assert isinstance(turns.arrive(alone=False, run=run), Pending)


def test_a_run_that_nobody_waits_for_keeps_its_turn_until_the_transaction_is_full() -> None:
    """Nobody has to gather for it meanwhile; where it does not come, somebody does (§6)."""
    turns, run = WriteQueue(), object()
    turns.arrive(alone=False, run=run)
    group = turns.opened(0.0)
    for _ in range(MOST_HANDLERS - 1):
        assert turns.ended(group, 0.0, more=True, run=run) == (Next.KEPT, None)
        assert turns.arrive(alone=False, run=run) is Next.GO
    assert turns.ended(group, 0.0, more=True, run=run) == (Next.COMMIT, None)
    turns.closed(group)
    turns.released()
    turns.arrive(alone=False, run=run)
    group = turns.opened(1.0)
    assert turns.ended(group, 1.0, more=True, run=run) == (Next.KEPT, None)
    assert turns.passed_on(group, 1.0, run) == (Next.GATHER, None)
    assert turns.passed_on(group, 1.0, run) is None
    assert turns.gathered(group, 2.0) is Next.COMMIT


def test_no_run_keeps_the_journal_waiting() -> None:
    """The journal waits for the transaction's end, not for what is about to come (§6)."""
    turns, run = WriteQueue(), object()
    turns.arrive(alone=False, run=run)
    group = turns.opened(0.0)
    turns.arrive(alone=True)
    assert turns.ended(group, 0.0, more=True, run=run) == (Next.COMMIT, None)
