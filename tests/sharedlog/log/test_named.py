"""A name's transactions are committed once each, by whatever program (DESIGN-LOG §12, L3)."""

import asyncio

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._core.named import Turn, append_named, forget, named_key, placed_by
from sharedlog._core.producers import NewMessage
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import messages, pending, substream, texts

LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]


def publish(producer, values, **turn):
    with producer.transaction(**turn) as transaction:
        for value in values:
            transaction.publish("s", value)
    return transaction


def test_a_name_goes_on_where_it_stopped(log, url):
    """In another program, too (L3)."""
    log.stream("s", 1)
    first = log.producer("relay")
    assert first.last() == 0
    assert publish(first, ["a"]).seq == 1
    assert publish(first, ["b"], seq=7).seq == 7
    assert publish(first, ["c"]).seq == 8
    with sharedlog.open(url) as other:
        second = other.producer("relay")
        assert publish(second, ["d"]).seq == 9
        assert second.last() == 9
        assert other.producer("another").last() == 0
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("values", [["a", "b"], LARGE, []])
def test_the_same_transaction_again_is_answered(log, url, values):
    """By whatever program, later: its positions are those of the first time (L3)."""
    log.stream("s", 3)
    first = publish(log.producer("relay"), values, seq=5, follows=0)
    with sharedlog.open(url) as other:
        # Another turn of the substreams, another time.
        other.stream("s")
        other.publish("s", "between")
        again = publish(other.producer("relay"), values, seq=5, follows=0)
    assert again.positions == first.positions
    assert sorted(texts(log, "s")) == sorted([*values, "between"])
    assert pending(log) == []


def test_who_is_behind_is_told_and_appends_nothing(log):
    """Of two who use one name the later; also one restored from a backup (L3)."""
    log.stream("s", 1)
    first, second = log.producer("relay"), log.producer("relay")
    assert first.last() == second.last() == 0
    publish(first, ["a"])
    for values in (["b"], LARGE):
        with pytest.raises(sharedlog.AlreadyCommitted, match="other content"):
            publish(second, values)
    publish(first, ["c"])
    with pytest.raises(sharedlog.AlreadyCommitted, match="passed over"):
        publish(second, ["a"])
    with pytest.raises(sharedlog.PredecessorMismatch) as caught:
        publish(first, ["d"], seq=9, follows=1)
    assert (caught.value.found, caught.value.appended) == (2, False)
    assert second.last() == 2
    publish(second, ["e"])
    assert [each.text for each in substream(log, "s", 0)] == ["a", "c", "e"]
    assert pending(log) == []


def test_a_transaction_without_messages_is_recorded_as_any_other(log, url):
    """Its seq is the name's highest: the next one follows it, and another content is told (L3)."""
    log.stream("s", 1)
    first, second = log.producer("relay"), log.producer("relay")
    assert publish(first, ["a"]).seq == 1
    assert publish(first, []).positions == []
    assert first.last() == second.last() == 2
    publish(second, ["b"], seq=3, follows=2)
    with pytest.raises(sharedlog.PredecessorMismatch):
        publish(first, [], seq=9, follows=7)
    with pytest.raises(sharedlog.AlreadyCommitted, match="other content"):
        publish(first, [], seq=3, follows=2)
    assert texts(log, "s") == ["a", "b"]

    async def from_a_task():
        async with await sharedlog.aio.open(url) as mine:
            async with mine.producer("relay").transaction() as transaction:
                assert transaction.seq == 4
            return await mine.producer("relay").last()

    if not url.startswith("memory:"):
        assert asyncio.run(from_a_task()) == 4


def test_an_answer_comes_before_the_fence_and_the_fence_before_the_order(log):
    """Judged in that order (L3, L4)."""
    log.stream("s", 1)
    old = log.producer("relay", fence=log.raise_fence("f"))
    publish(old, ["a"], seq=1, follows=0)
    log.raise_fence("f")
    publish(old, ["a"], seq=1, follows=0)
    for seq, follows in ((1, 0), (2, 1), (9, 5)):
        with pytest.raises(sharedlog.Fenced):
            publish(old, ["b"], seq=seq, follows=follows)
    assert texts(log, "s") == ["a"]


@pytest.mark.parametrize("fault", ["lost", "late"])
@pytest.mark.parametrize("values", [["0000"], LARGE])
def test_an_unanswered_commit_is_sent_again(log, fault, values):
    """It is there once, and its positions are right (L3, L7)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    producer = mine.producer("relay")
    engine.faults = [*([""] * 3 if len(values) > 1 else []), fault]
    done = publish(producer, values)
    assert engine.faults == []
    assert [each.position for each in substream(log, "s", 0)] == done.positions
    assert publish(producer, ["next"]).seq == 2


def test_a_name_is_kept_until_it_is_forgotten(log):
    """Then it begins anew (L3)."""
    log.stream("s", 1)
    publish(log.producer("relay"), ["a"], seq=12)
    assert log._run(forget("relay")) == 12
    assert log._run(forget("relay")) == 0
    assert publish(log.producer("relay"), ["b"]).seq == 1


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 181, "é", "a\n"])
def test_names_have_bounds(log, name):
    """They are parts of keys (L3)."""
    with pytest.raises(sharedlog.InvalidRequest):
        log.producer(name)


@pytest.mark.parametrize(("seq", "follows"), [(0, 0), (1, 1), (1, -1), (1 << 63, 0), (2, 3)])
def test_turns_have_bounds(log, seq, follows):
    """Seqs rise (L3)."""
    log.stream("s", 1)
    with pytest.raises(sharedlog.InvalidRequest):
        publish(log.producer("relay"), ["a"], seq=seq, follows=follows)
    assert texts(log, "s") == []


def test_what_stands_in_the_place_of_an_answer_is_checked(log):
    """Positions are never guessed (DESIGN-LOG §13)."""
    log.stream("s", 1)
    turn = Turn("relay", 3, 0)
    message = [NewMessage(b"", ("s/0", "s/*"))]
    found = log._run(append_named(turn, b"c" * 16, message))
    assert log._run(placed_by(turn, found.lsn)) == (["s/0"], found.checksum)
    for wrong, lsn in ((Turn("other", 3, 0), found.lsn), (turn, found.lsn + 1)):
        with pytest.raises(sharedlog.CorruptLog):
            log._run(placed_by(wrong, lsn))
    assert log._engine.get((named_key("relay"),)) != {named_key("relay"): None}


def test_a_name_appends_messages_as_any_other(log):
    """A single one, with its position; no name, no entry of it (L3)."""
    log.stream("s", 2)
    producer = log.producer("relay")
    position = producer.publish("s", "a", key="k", seq=3)
    assert [each.position for each in messages(log, "s")] == [position]
    assert producer.publish("s", "b") > position
    assert publish(producer, []).positions == []
    assert producer.last() == 5


def test_the_same_messages_of_another_time_are_answered(log):
    """A program that restarted gives other event times and traces (L3)."""
    log.stream("s", 1)
    first = log.producer("relay").publish("s", "a", seq=1, follows=0)
    for number in range(2):
        about = sharedlog.About(
            event_time_us=number, trace_parent=f"00-{number + 1:032x}-{number + 1:016x}-01"
        )
        assert log.producer("relay").publish("s", "a", about=about, seq=1, follows=0) == first
    other = sharedlog.About(causation_id="another")
    with pytest.raises(sharedlog.AlreadyCommitted):
        log.producer("relay").publish("s", "a", about=other, seq=1, follows=0)
    assert texts(log, "s") == ["a"]
