"""An append is in the log once, however often it is sent (DESIGN-LOG §12, L3 and L4)."""

import pickle

import pytest

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import (
    AnswerGone,
    Fenced,
    InvalidRequest,
    OutOfOrder,
    ProducerRetired,
    SeqReused,
    UnknownProducer,
)
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.producers import append, grant
from sharedlog._core.spans import retire
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import TOKEN, message, producer, texts


@pytest.fixture
def engine():
    return MemoryEngine()


def test_an_append_that_is_sent_again_is_answered_and_not_repeated(engine):
    """Its answer is the LSN that it got at first (L3)."""
    mine = producer(engine)
    first = carry_out(engine, append(mine, 1, [message("a"), message("b")]))
    again = carry_out(engine, append(mine, 1, [message("a"), message("b")]))
    assert (first.lsn, first.first) == (2, 1)
    assert (again.lsn, again.first) == (2, None)
    assert texts(engine) == ["a", "b"]


def test_a_seq_with_other_content_is_refused(engine):
    """Another message, other tags and another kind are other content (L3)."""
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message("a")]))
    for other in ([message("b")], [message("a", 1)], [message("a"), message("a")]):
        with pytest.raises(SeqReused) as caught:
            carry_out(engine, append(mine, 1, other))
        assert caught.value.appended is False
    assert texts(engine) == ["a"]


def test_a_gap_is_refused_and_says_what_is_expected(engine):
    """The next seq is the highest plus one (L3)."""
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message("a")]))
    with pytest.raises(OutOfOrder) as caught:
        carry_out(engine, append(mine, 3, [message("c")]))
    assert caught.value.expected == 2
    with pytest.raises(InvalidRequest):
        carry_out(engine, append(mine, 0, [message("a")]))


@pytest.mark.parametrize("window", [1, 3])
def test_answers_are_kept_for_a_window(engine, window):
    """Behind it a seq is known to be in the log, but no longer where (L3)."""
    mine = producer(engine, window)
    for seq in range(1, 6):
        carry_out(engine, append(mine, seq, [message(str(seq))]))
    for seq in range(1, 6):
        if seq > 5 - window:
            assert carry_out(engine, append(mine, seq, [message(str(seq))])).lsn == seq
        else:
            with pytest.raises(AnswerGone) as caught:
                carry_out(engine, append(mine, seq, [message(str(seq))]))
            assert caught.value.appended is True
    assert texts(engine) == ["1", "2", "3", "4", "5"]


def test_ids_are_never_given_twice_and_tokens_are_shown(engine):
    """A restored file would grant the same ids again: the token tells them apart (L3)."""
    first, second = producer(engine), producer(engine)
    assert second.id == first.id + 1
    stranger = first._replace(token=b"x" * 16)
    for other in (stranger, first._replace(id=99), first._replace(window=2)):
        with pytest.raises(UnknownProducer):
            carry_out(engine, append(other, 1, [message("a")]))
    assert texts(engine) == []


def test_two_grants_that_meet_give_two_ids(engine):
    """The one that comes second is refused by its condition and draws the next (L3)."""
    rule, rival = grant(TOKEN), grant(TOKEN)
    found = do(engine, next(rule))
    commit = rule.send(found)
    other = carry_out(engine, rival)
    with pytest.raises(Refused) as caught:
        do(engine, commit)
    step = rule.throw(caught.value)
    commit = rule.send(do(engine, step))
    assert isinstance(commit, Commit)
    with pytest.raises(StopIteration) as done:
        rule.send(do(engine, commit))
    assert done.value.value.id == other.id + 1


def test_nothing_is_written_under_a_fence_that_was_raised(engine):
    """Not even what was on its way when it was raised (L4)."""
    mine = producer(engine)
    number = carry_out(engine, raise_fence("shard/0"))
    held = Fence("shard/0", number)
    carry_out(engine, append(mine, 1, [message("a")], fence=held))
    on_its_way = next(append(mine, 2, [message("b")], fence=held))
    assert carry_out(engine, raise_fence("shard/0")) == number + 1
    with pytest.raises(Refused):
        do(engine, on_its_way)
    with pytest.raises(Fenced) as caught:
        carry_out(engine, append(mine, 2, [message("b")], fence=held))
    assert caught.value.number == number + 1
    assert texts(engine) == ["a"]


def test_what_was_appended_is_answered_before_the_fence_is_judged(engine):
    """A zombie learns that its append happened (L3)."""
    mine = producer(engine)
    held = Fence("f", carry_out(engine, raise_fence("f", 7)))
    assert held.number == 7
    carry_out(engine, append(mine, 1, [message("a")], fence=held))
    carry_out(engine, raise_fence("f"))
    assert carry_out(engine, append(mine, 1, [message("a")], fence=held)).lsn == 1


def test_a_retired_producer_is_refused_but_answered(engine):
    """Its highest seq and that answer outlive it (L3)."""
    mine = producer(engine)
    carry_out(engine, append(mine, 1, [message("a")]))
    assert carry_out(engine, retire(mine.id)) == 1
    assert carry_out(engine, retire(mine.id)) == 1
    assert carry_out(engine, append(mine, 1, [message("a")])).lsn == 1
    with pytest.raises(ProducerRetired):
        carry_out(engine, append(mine, 2, [message("b")]))
    with pytest.raises(UnknownProducer):
        carry_out(engine, retire(77))


@pytest.mark.parametrize("error", [OutOfOrder("seq", 3), Fenced("f", 8), AnswerGone("gone")])
def test_errors_pickle(error):
    """With what they say and whether the append is in the log."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
