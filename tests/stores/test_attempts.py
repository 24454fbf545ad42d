"""The attempts on one replica of a shared store."""

from __future__ import annotations

import pytest

from rifl._stores.shared.attempts import Attempts
from rifl._stores.shared.requests import Claimed, Found
from tests.stores.conformance import IDEMPOTENT, call


@pytest.mark.parametrize("ended", [False, True])
def test_one_arrival_knows_what_became_of_another(ended: bool) -> None:
    """Claimed while it asked, and maybe ended, the call has run: not *not executed* (§3)."""
    attempts = Attempts("replica")
    first, second, other = (attempts.new(call(1, seq), IDEMPOTENT) for seq in (1, 1, 2))
    first.claimed = True
    if ended:
        attempts.settle(first)
    assert attempts.give_up(second)
    assert not attempts.give_up(other)


def test_an_arrival_that_still_asks_may_run() -> None:
    """The first to be refused is not told that nothing runs; the last one is (§3)."""
    attempts = Attempts("replica")
    first, second = (attempts.new(call(1, 1), IDEMPOTENT) for _ in range(2))
    assert attempts.give_up(first)
    assert not attempts.give_up(second)
    # Their claims may stand, and are taken back; until then they are here, and run nowhere.
    assert attempts.unsettled() == 2
    assert len(attempts) == 0
    assert attempts.settled(0)
    assert not attempts.give_up(attempts.new(call(1, 1), IDEMPOTENT))


def test_an_arrival_that_waits_for_another_may_run() -> None:
    """What it waits for is refused, and it decides again then (§3)."""
    attempts = Attempts("replica")
    first, second = (attempts.new(call(1, 1), IDEMPOTENT) for _ in range(2))
    first.awaited = True
    attempts.settle(second)
    assert attempts.give_up(first)


def test_an_arrival_that_comes_later_asks_the_store() -> None:
    """What ended before it came is no reason to think that it ran just now."""
    attempts = Attempts("replica")
    first = attempts.new(call(1, 1), IDEMPOTENT)
    first.claimed = True
    attempts.settle(first)
    second = attempts.new(call(1, 1), IDEMPOTENT)
    assert not attempts.give_up(second)


def test_nothing_is_kept_of_what_ended() -> None:
    """However many arrive, settled twice or once (DESIGN §9, bounds)."""
    attempts = Attempts("replica")
    made = [attempts.new(call(1, seq // 2), IDEMPOTENT) for seq in range(2, 22)]
    for attempt in made + made[:3]:
        attempts.settle(attempt)
    assert len(attempts) == 0
    assert attempts._arrivals == {}


def test_nobody_waits_for_a_record_that_can_never_be_written() -> None:
    """A handler that still runs is waited for, whatever became of the store (DESIGN §6)."""
    attempts = Attempts("replica")
    done, running = (attempts.new(call(1, seq), IDEMPOTENT) for seq in (1, 2))
    attempts.owe(done)
    assert len(attempts) == 2
    attempts.lose()
    assert len(attempts) == 1
    attempts.settle(running)
    assert attempts.settled(0)


def _seen(token: bytes) -> Claimed:
    return Claimed(Found.RUNNING, token, "another")


def test_who_does_not_wait_yet_decides_again_where_the_last_waiter_left() -> None:
    """No message would find what it was given to wait for (§4, step 5)."""
    attempts = Attempts("replica")
    given = [attempts.stand_in(call(1, 1), IDEMPOTENT, _seen(b"token"), 0) for _ in range(2)]
    assert given[0] is given[1]
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    assert attempts.wait(given[0], wake)
    attempts.leave(given[0], wake)
    assert not attempts.wait(given[1], wake)
    assert woken == []


def test_who_leaves_what_has_ended_leaves_no_other_waiter_alone() -> None:
    """What was made since for the same token is woken by its message (§4, step 5)."""
    attempts = Attempts("replica")
    seen = _seen(b"token")._replace(noted=False)
    old = attempts.stand_in(call(1, 1), IDEMPOTENT, seen, 0)
    woken: list[str] = []

    def wake_old() -> None:
        woken.append("old")

    assert attempts.wait(old, wake_old)
    # Nobody sends a message about it: it is looked at again.
    attempts.wake_for(lambda owner: False)
    new = attempts.stand_in(call(1, 1), IDEMPOTENT, _seen(b"token"), 0)
    assert attempts.wait(new, lambda: woken.append("new"))
    attempts.leave(old, wake_old)
    attempts.wake(b"token")
    assert woken == ["old", "new"]
