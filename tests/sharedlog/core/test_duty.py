"""A duty, which one of a log's processes has at a time (DESIGN-LOG §12, L4)."""

import pytest

import sharedlog
from sharedlog._core.commit import Refused
from sharedlog._core.duty import Duty
from sharedlog._core.fences import Fence, check_fence_name
from sharedlog._engines.driving import carry_out, do
from tests.sharedlog.logs import carry_out_from, to_commit

PATIENCE_S = 30.0


def duty(number):
    return Duty("work", bytes([number]) * 8, PATIENCE_S)


def take(engine, mine, now_s):
    return carry_out(engine, mine.take(now_s))


def test_one_has_a_duty_until_another_has_seen_nothing_of_it_for_its_patience(each_engine):
    """By the other one's own clock, from when it first saw the beat (L4)."""
    first, second = duty(1), duty(2)
    fence = take(each_engine, first, 1000.0)
    assert fence == Fence("*work", 1)
    assert take(each_engine, second, 5.0) is None
    assert take(each_engine, second, 5.0 + PATIENCE_S - 0.1) is None
    assert take(each_engine, first, 1001.0) == fence
    assert take(each_engine, second, 5.0 + PATIENCE_S) is None
    assert take(each_engine, second, 4.9 + 2 * PATIENCE_S) is None
    assert take(each_engine, second, 5.0 + 2 * PATIENCE_S) == Fence("*work", 2)
    assert take(each_engine, first, 1002.0) is None


def test_no_clock_is_compared_with_another_ones(each_engine):
    """Whatever they show, backwards too, nobody takes over from one that beats (L4)."""
    first, second = duty(1), duty(2)
    for at, (mine, other) in enumerate([(0.0, 9e9), (9e9, 0.0), (-5.0, 17.0), (3.0, 2.0)]):
        assert take(each_engine, first, mine) == Fence("*work", 1), at
        assert take(each_engine, second, other) is None, at


def test_who_leaves_is_followed_at_once(each_engine):
    """And nobody leaves in another one's place (L4)."""
    first, second = duty(1), duty(2)
    take(each_engine, first, 0.0)
    carry_out(each_engine, second.leave())
    assert take(each_engine, second, 0.0) is None
    carry_out(each_engine, first.leave())
    assert take(each_engine, second, 0.0) == Fence("*work", 2)
    carry_out(each_engine, first.leave())
    assert take(each_engine, second, 0.0) == Fence("*work", 2)


def test_who_leaves_late_takes_nothing_from_who_took_over(each_engine):
    """On its way it finds another one's beat, and leaves that as it is (L4)."""
    first, second = duty(1), duty(2)
    take(each_engine, first, 0.0)
    rule = first.leave()
    leaving = to_commit(each_engine, rule)
    assert take(each_engine, second, 0.0) is None
    assert take(each_engine, second, PATIENCE_S) == Fence("*work", 2)
    with pytest.raises(Refused) as caught:
        do(each_engine, leaving)
    carry_out_from(each_engine, rule, caught.value)
    assert take(each_engine, duty(3), 0.0) is None


def test_of_two_that_take_over_at_once_one_does(each_engine):
    """Judged in the step that takes it (L4)."""
    first, second = duty(1), duty(2)
    rule = first.take(0.0)
    taking = to_commit(each_engine, rule)
    assert take(each_engine, second, 0.0) == Fence("*work", 1)
    with pytest.raises(Refused) as caught:
        do(each_engine, taking)
    assert carry_out_from(each_engine, rule, caught.value) is None


def test_who_did_not_hear_that_it_took_a_duty_finds_that_it_has_it(each_engine):
    """The same fence, not its own patience later (L4)."""
    mine = duty(1)
    rule = mine.take(0.0)
    do(each_engine, to_commit(each_engine, rule))
    rule.close()
    assert take(each_engine, mine, 0.0) == Fence("*work", 1)


def test_no_user_can_raise_the_fence_of_a_duty():
    """Its name is none that ``raise_fence`` takes (L4)."""
    with pytest.raises(sharedlog.InvalidRequest):
        check_fence_name("*work")
