"""Pending spans, decided once, by one entry for all substreams (DESIGN-LOG §13, C1 and C2)."""

import pytest

from sharedlog._core.commit import Refused
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import InvalidRequest, ProducerRetired, SpanGone
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.producers import append
from sharedlog._core.spans import decide, pend, retire
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import message, pending, producer, texts


@pytest.fixture
def engine():
    return MemoryEngine()


def test_what_is_pending_is_seen_with_its_marker_in_all_substreams(engine):
    """And not before (C1)."""
    mine = producer(engine)
    first = carry_out(engine, pend(mine, 1, [pending("a", 0), pending("b", 1)], []))
    second = carry_out(engine, pend(mine, 2, [pending("c", 1)], sorted(first.begins)))
    assert first.begins == {"s/0": 1, "s/1": 1}
    assert second.begins == {}
    assert (texts(engine, 0), texts(engine, 1)) == ([], [])
    decision = ProducerDecision(mine.id, 2, first.begins)
    marker = carry_out(engine, decide(mine, 3, [decision], commits=True))
    assert (texts(engine, 0), texts(engine, 1)) == (["a"], ["b", "c"])
    assert carry_out(engine, decide(mine, 3, [decision], commits=True)).lsn == marker.lsn
    assert (texts(engine, 0), texts(engine, 1)) == (["a"], ["b", "c"])


def test_a_rollback_is_seen_by_nobody_and_the_next_transaction_is_its_own(engine):
    """The first decision behind a message decides it for ever (C1)."""
    mine = producer(engine)
    first = carry_out(engine, pend(mine, 1, [pending("lost")], []))
    carry_out(engine, decide(mine, 2, [ProducerDecision(mine.id, 1, first.begins)], commits=False))
    second = carry_out(engine, pend(mine, 3, [pending("kept")], []))
    carry_out(engine, decide(mine, 4, [ProducerDecision(mine.id, 3, second.begins)], commits=True))
    assert texts(engine) == ["kept"]


def test_a_pending_append_that_is_sent_again_tells_the_same_begins(engine):
    """The caller whose reply was lost can still commit (L3)."""
    mine = producer(engine)
    first = carry_out(engine, pend(mine, 1, [pending("a", 0), pending("b", 1)], []))
    assert carry_out(engine, pend(mine, 1, [pending("a", 0), pending("b", 1)], [])) == first


@pytest.mark.parametrize("again", [["s/0"], []], ids=["more of a tag", "the first"])
def test_a_pending_append_that_is_sent_again_after_its_decision_is_refused(engine, again):
    """Its caller would commit what is left without it, as another producer (C1)."""
    mine = producer(engine)
    carry_out(engine, pend(mine, 1, [pending("a", 0)], []))
    if again:
        carry_out(engine, pend(mine, 2, [pending("b", 0)], again))
    carry_out(engine, retire(mine.id))
    with pytest.raises(SpanGone, match="decided meanwhile"):
        carry_out(engine, pend(mine, 1 + len(again), [pending("ab"[len(again)], 0)], again))


@pytest.mark.parametrize(
    "wrong",
    [
        {"s/0": 1},
        {"s/0": 1, "s/1": 2},
        {"s/0": 1, "s/1": 1, "s/2": 1},
        {},
    ],
)
def test_a_marker_names_exactly_what_is_pending(engine, wrong):
    """Else part of a transaction would stay behind, or be decided twice (C1)."""
    mine = producer(engine)
    carry_out(engine, pend(mine, 1, [pending("a", 0), pending("b", 1)], []))
    with pytest.raises(SpanGone):
        carry_out(engine, decide(mine, 2, [ProducerDecision(mine.id, 1, wrong)], commits=True))
    assert (texts(engine, 0), texts(engine, 1)) == ([], [])


def test_a_marker_of_another_decides_only_what_is_whole(engine):
    """Of a producer that appended since, nothing is committed (C1: its highest seq)."""
    tasks = [producer(engine) for _ in range(2)]
    driver = producer(engine)
    begins = [
        carry_out(engine, pend(each, 1, [pending(f"t{each.id}")], [])).begins for each in tasks
    ]
    carry_out(engine, pend(tasks[1], 2, [pending("late")], ["s/0"]))
    stale = [ProducerDecision(each.id, 1, begin) for each, begin in zip(tasks, begins, strict=True)]
    with pytest.raises(SpanGone):
        carry_out(engine, decide(driver, 1, stale, commits=True))
    whole = [stale[0], ProducerDecision(tasks[1].id, 2, begins[1])]
    carry_out(engine, decide(driver, 1, whole, commits=True))
    assert texts(engine) == ["t1", "t2", "late"]
    with pytest.raises(InvalidRequest):
        carry_out(engine, decide(driver, 2, [stale[0], stale[0]], commits=True))


def test_retiring_rolls_back_and_refuses_the_marker(engine):
    """Whoever comes first decides (C2)."""
    mine, driver = producer(engine), producer(engine)
    begins = carry_out(engine, pend(mine, 1, [pending("a")], [])).begins
    assert carry_out(engine, retire(mine.id)) == 1
    decision = ProducerDecision(mine.id, 1, begins)
    with pytest.raises(SpanGone):
        carry_out(engine, decide(driver, 1, [decision], commits=True))
    with pytest.raises(ProducerRetired):
        carry_out(engine, decide(mine, 2, [decision], commits=True))
    with pytest.raises(ProducerRetired):
        carry_out(engine, pend(mine, 2, [pending("b")], ["s/0"]))
    assert texts(engine) == []


def test_a_marker_that_came_first_stands_when_its_producer_is_retired(engine):
    """Retiring has nothing to roll back then (C2)."""
    mine = producer(engine)
    begins = carry_out(engine, pend(mine, 1, [pending("a")], [])).begins
    decision = ProducerDecision(mine.id, 1, begins)
    marker = carry_out(engine, decide(mine, 2, [decision], commits=True))
    tail = engine.tail()
    assert carry_out(engine, retire(mine.id)) == 2
    assert engine.tail() == tail
    assert carry_out(engine, decide(mine, 2, [decision], commits=True)).lsn == marker.lsn
    assert texts(engine) == ["a"]


@pytest.mark.parametrize("substream", [0, 1])
def test_a_producer_that_appends_while_it_is_retired_loses_nothing_silently(engine, substream):
    """The rollback knows what came in between, or the append is refused (C2)."""
    mine = producer(engine)
    carry_out(engine, pend(mine, 1, [pending("a", 0)], []))
    rule = retire(mine.id)
    found = do(engine, next(rule))
    spans = do(engine, rule.send(found))
    commit = rule.send(spans)
    carry_out(engine, pend(mine, 2, [pending("b", substream)], ["s/0"]))
    with pytest.raises(Refused) as caught:
        do(engine, commit)
    step = rule.throw(caught.value)
    step = rule.send(do(engine, step))
    step = rule.send(do(engine, step))
    with pytest.raises(StopIteration) as done:
        rule.send(do(engine, step))
    assert done.value.value == 2
    assert engine.scan("span/") == {}
    assert (texts(engine, 0), texts(engine, 1)) == ([], [])


def test_a_fenced_marker_decides_nothing(engine):
    """The successor's rollback, or its marker, does (L4)."""
    mine = producer(engine)
    held = Fence("f", carry_out(engine, raise_fence("f")))
    begins = carry_out(engine, pend(mine, 1, [pending("a")], [], fence=held)).begins
    on_its_way = next(
        decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True, fence=held)
    )
    carry_out(engine, raise_fence("f"))
    with pytest.raises(Refused):
        do(engine, on_its_way)
    assert texts(engine) == []


def test_single_messages_pass_between_what_is_pending(engine):
    """A pending transaction holds nobody up (C3)."""
    mine, other = producer(engine), producer(engine)
    begins = carry_out(engine, pend(mine, 1, [pending("first")], [])).begins
    carry_out(engine, append(other, 1, [message("second")]))
    assert texts(engine) == ["second"]
    carry_out(engine, decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True))
    assert texts(engine) == ["second", "first"]
