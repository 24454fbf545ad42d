"""The records of one stream to a witness: numbers, order, gathering (DESIGN §7, invariant 2)."""

from __future__ import annotations

import pytest

from curp._core.pending_records import PendingRecords, QuickDuration, UnaskedAnswer


def _line(leader_s: float = 0.0) -> PendingRecords[str]:
    leader = QuickDuration()
    if leader_s:
        leader.note(leader_s)
    return PendingRecords(leader)


def test_a_verdict_counts_for_the_record_of_its_number() -> None:
    """Numbers go on from message to message, and each reply is about one whole message."""
    line = _line()
    assert line.sent(["a", "b"], 0.0) == 1
    assert line.sent(["c"], 0.0) == 3
    assert line.answered(1, 2, 0.1) == ["a", "b"]
    assert line.answered(3, 1, 0.1) == ["c"]
    assert len(line) == 0


@pytest.mark.parametrize(("first", "verdicts"), [(2, 2), (1, 1), (1, 3), (3, 1)])
def test_what_was_not_asked_is_no_answer(first: int, verdicts: int) -> None:
    """A verdict that cannot be told from another's counts for nobody (invariant 2)."""
    line = _line()
    line.sent(["a", "b"], 0.0)
    line.sent(["c"], 0.0)
    with pytest.raises(UnaskedAnswer):
        line.answered(first, verdicts, 0.1)
    assert line.broken() == ["a", "b", "c"]
    with pytest.raises(UnaskedAnswer):
        line.answered(1, 2, 0.1)


def test_what_had_no_verdict_is_given_back_once() -> None:
    """A stream that breaks says nothing of the records that are under way."""
    line = _line()
    line.sent(["a"], 0.0)
    line.sent(["b"], 0.0)
    line.answered(1, 1, 0.1)
    assert line.broken() == ["b"]
    assert line.broken() == []


def test_the_oldest_message_tells_for_how_long_the_witness_is_silent() -> None:
    """So a stream to a witness that hangs is given up (DESIGN §9, bounds)."""
    line = _line()
    assert line.oldest_s(5.0) == 0.0
    line.sent(["a"], 1.0)
    line.sent(["b"], 2.0)
    assert line.oldest_s(5.0) == 4.0
    line.answered(1, 1, 5.0)
    assert line.oldest_s(5.0) == 3.0


def test_a_record_that_comes_alone_is_sent_at_once() -> None:
    """A caller by itself has its verdict after one round trip (CURP §3.2.1)."""
    line = _line(0.010)
    assert line.wait_s(0.0) == 0.0
    line.sent(["a"], 0.0)
    line.answered(1, 1, 0.001)
    assert line.wait_s(0.010) == 0.0


def test_records_gather_while_the_leader_takes_longer() -> None:
    """They wait as long as verdicts come by most of the leader's time, and 20 ms at most."""
    line = _line(0.010)
    line.sent(["a"], 0.0)
    line.answered(1, 1, 0.001)
    assert line.wait_s(0.001) == pytest.approx(0.006)
    slow = _line(1.0)
    slow.sent(["a"], 0.0)
    assert slow.wait_s(0.0) == pytest.approx(0.020)


def test_a_slow_methods_calls_keep_quick_ones_records_no_longer() -> None:
    """The leader's time is that of its quick answers, where those are one in four (CURP §3.2.1)."""
    leader = QuickDuration()
    for _ in range(100):
        for seconds in (0.002, 1.0, 1.0, 1.0):
            leader.note(seconds)
    line = PendingRecords[str](leader)
    line.sent(["a"], 0.0)
    line.answered(1, 1, 0.001)
    assert line.wait_s(0.001) < 0.002


def test_nobody_waits_where_the_witness_is_as_far_as_the_leader() -> None:
    """There a record that waited would be what the call waits for."""
    line = _line(0.010)
    line.sent(["a"], 0.0)
    line.answered(1, 1, 0.009)
    line.sent(["b"], 0.010)
    assert line.wait_s(0.010) == 0.0
