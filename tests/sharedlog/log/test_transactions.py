"""A transaction is read whole or not at all, whatever fails on its way (DESIGN-LOG §13)."""

import gc
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.errors import LogFull
from sharedlog._core.spans import retire
from tests.helpers.forked import Forked
from tests.sharedlog.faulty import faulty
from tests.sharedlog.places import SHARED, url_of
from tests.sharedlog.reads import messages, pending, substream, texts

NOW = timedelta(0)
# More than one append takes.
LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]


def run(transaction, values, then=None):
    """Publish these in the transaction, and leave it, by an exception if there is one."""
    with transaction:
        for value in values:
            transaction.publish("s", value)
        if then is not None:
            raise then


@pytest.mark.parametrize("values", [["a"], ["a", "b", "c"], LARGE])
def test_what_is_committed_is_read_where_the_transaction_says(log, values):
    """One append or many: in its order, at its positions (DESIGN-LOG §13, C3)."""
    for name in ("s", "t"):
        log.stream(name, 3)
    producer = log.producer()
    with producer.transaction() as transaction:
        for number, value in enumerate(values):
            transaction.publish("s" if number % 3 else "t", value, key=str(number))
        assert texts(log, "s") == texts(log, "t") == []
    assert transaction.committed is True
    where = {each.text: each.position for name in ("s", "t") for each in messages(log, name)}
    assert [where[value] for value in values] == transaction.positions
    assert len({each.lsn for each in transaction.positions}) == 1
    for name in ("s", "t"):
        for number in range(3):
            found = [each.text for each in substream(log, name, number)]
            assert found == sorted(found)
    assert pending(log) == []


@pytest.mark.parametrize("values", [[], ["lost"], LARGE], ids=["empty", "small", "large"])
@pytest.mark.parametrize("name", [None, "orders"], ids=["unnamed", "named"])
def test_a_transaction_that_is_dropped_is_undone_and_the_next_one_says_so(log, name, values):
    """Who waits for it in another thread goes on: it was blocked for good (§13)."""
    log.stream("s", 1)
    producer = log.producer(name)
    dropped = producer.transaction()
    for value in values:
        dropped.publish("s", value)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(sharedlog.InvalidRequest, match="open"):
            producer.transaction()
        waiting = pool.submit(producer.transaction)
        # It waits, or will; nothing else that it does may block.
        del dropped
        with pytest.raises(sharedlog.InvalidRequest, match="dropped, neither committed"):
            waiting.result(60)
    run(producer.transaction(), ["kept"])
    assert texts(log, "s") == ["kept"]
    assert pending(log) == []
    assert producer.publish("s", "behind").lsn > 0


def test_a_transaction_that_ended_is_dropped_without_a_word(log):
    """However it ended, and the next one is open meanwhile (§13)."""
    log.stream("s", 1)
    producer = log.producer()
    committed = producer.transaction()
    committed.publish("s", "a")
    committed.commit()
    undone = producer.transaction()
    undone.roll_back()
    with producer.transaction() as transaction:
        transaction.publish("s", "b")
        del committed, undone
        gc.collect()
        with pytest.raises(sharedlog.InvalidRequest, match="open"):
            producer.transaction()
    assert texts(log, "s") == ["a", "b"]
    run(producer.transaction(), ["c"])


def test_what_was_undone_for_want_of_room_is_not_committed_in_part(log):
    """A reply is lost, then the log is full: the producer is retired, all of it is gone (C1)."""
    log.stream("s", 2)
    mine, engine = faulty(log)
    engine.faults = ["late", LogFull("no room")]
    producer = mine.producer()
    transaction = producer.transaction()
    with pytest.raises(sharedlog.SpanGone):
        run(transaction, LARGE)
    assert transaction.committed is False
    assert engine.faults == []
    run(producer.transaction(), ["next"])
    assert texts(log, "s") == ["next"]
    assert pending(log) == []


@pytest.mark.parametrize("values", [[], ["a", "b"], LARGE])
def test_an_exception_rolls_back(log, values):
    """Nothing of it is ever read, and the next transaction is its own (C1)."""
    log.stream("s", 2)
    producer = log.producer()
    transaction = producer.transaction()
    with pytest.raises(ZeroDivisionError):
        run(transaction, values, ZeroDivisionError())
    assert transaction.committed is False
    with pytest.raises(sharedlog.InvalidRequest, match="rolled back"):
        _ = transaction.positions
    position = producer.publish("s", "next")
    assert [each.position for each in messages(log, "s")] == [position]
    assert pending(log) == []


def test_an_empty_transaction_appends_nothing(log):
    """It is committed, with no positions (DESIGN-LOG §13)."""
    with log.producer().transaction() as transaction:
        pass
    assert transaction.positions == []
    assert log._engine.tail() == 0


def test_a_transaction_that_is_over_takes_nothing(log):
    """It says how it ended; one is open at a time (DESIGN-LOG §13)."""
    log.stream("s")
    producer = log.producer()
    with producer.transaction() as transaction:
        transaction.publish("s", "a")
        with pytest.raises(sharedlog.InvalidRequest, match="is open"):
            producer.publish("s", "b")
        transaction.commit()
    for use in (transaction.commit, transaction.roll_back, lambda: transaction.publish("s", "b")):
        with pytest.raises(sharedlog.InvalidRequest, match="is committed"):
            use()
    with pytest.raises(sharedlog.InvalidRequest, match="named"):
        producer.publish("s", "b", seq=3)
    with pytest.raises(sharedlog.InvalidRequest):
        producer.last()
    assert texts(log, "s") == ["a"]


def test_threads_take_turns_at_a_producer(log):
    """Each transaction is whole (DESIGN-LOG §13)."""
    log.stream("s", 1)
    producer = log.producer()

    def publish(thread: int) -> None:
        for number in range(10):
            with producer.transaction() as transaction:
                for part in range(3):
                    transaction.publish("s", f"{thread}.{number}.{part}")

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(publish, thread) for thread in range(4)]:
            each.result(60)
    found = [each.text for each in substream(log, "s", 0)]
    assert len(found) == 120
    assert all(
        found[at][:-1] == found[at + 1][:-1] == found[at + 2][:-1] for at in range(0, 120, 3)
    )


def test_a_message_that_is_refused_leaves_the_transaction_as_it_was(log):
    """It may go on without it (DESIGN-LOG §13)."""
    log.stream("s", 1)
    with log.producer().transaction() as transaction:
        transaction.publish("s", "a")
        for stream, value in (("none", "b"), ("s", b"x" * (2 << 20)), ("s", 7)):
            with pytest.raises(sharedlog.LogError):
                transaction.publish(stream, value)
        transaction.publish("s", "c")
    assert texts(log, "s") == ["a", "c"]


@pytest.mark.parametrize("url", ["memory", "etcd"], indirect=True)
def test_a_transaction_over_too_many_substreams_is_refused(log):
    """A marker has one tag for each, or as many as an engine's commit holds (DESIGN-LOG §12)."""
    for name in ("s", "t", "u"):
        log.stream(name, 512)
    transaction = log.producer().transaction()
    places = [name for name in ("s", "t", "u") for _ in range(512)]
    refused = set()
    for name in places:
        try:
            transaction.publish(name, b"")
        except sharedlog.InvalidRequest as error:
            refused.add(str(error).split()[-5:-4][0])
    assert refused == {"streams"}
    transaction.commit()
    assert len(transaction.positions) > 50
    # Not each of 512 by itself.
    for place in transaction.positions[:512:25]:
        assert [each.position for each in substream(log, "s", place.substream)] == [place]
    assert pending(log) == []


@pytest.mark.parametrize("fault", ["lost", "late"])
@pytest.mark.parametrize("at", range(4))
def test_whatever_is_not_answered_is_sent_again(log, fault, at):
    """Each append on the way of a large transaction, and its marker (L3, L7)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    engine.faults = [*[""] * at, fault]
    with mine.producer().transaction() as transaction:
        for value in LARGE:
            transaction.publish("s", value)
    found = substream(log, "s", 0)
    assert [each.text for each in found] == LARGE
    assert [each.position for each in found] == transaction.positions
    assert engine.faults == []


@pytest.mark.parametrize("fault", ["lost", "late"])
@pytest.mark.parametrize("values", [["0000"], LARGE])
@pytest.mark.parametrize("how", ["settle", "next"])
def test_a_commit_of_unknown_outcome_is_resolved_by_asking_again(log, fault, values, how):
    """By the transaction, or before the producer's next (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    producer = mine.producer()
    transaction = producer.transaction()
    for value in values:
        transaction.publish("s", value)
    engine.faults = [*[""] * (len(values) > 1), fault]
    with pytest.raises(sharedlog.AppendUnknown):
        transaction.commit()
    assert transaction.committed is None
    with pytest.raises(sharedlog.InvalidRequest, match="unknown"):
        _ = transaction.positions
    if how == "settle":
        assert transaction.settle() == transaction.positions
    producer.publish("s", "next")
    assert transaction.committed is True
    found = substream(log, "s", 0)
    assert [each.text for each in found] == [*values, "next"]
    assert [each.position for each in found[:-1]] == transaction.settle()


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_what_was_pending_with_unknown_outcome_is_undone_before_the_next(log, fault):
    """Nothing of it is read, whether it had arrived or not (C1)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    producer = mine.producer()
    engine.faults = ["", fault, "lost", "lost"]
    transaction = producer.transaction()
    with pytest.raises(sharedlog.AppendUnknown):
        run(transaction, LARGE * 2)
    assert transaction.committed is False
    engine.faults = ["lost"]
    with pytest.raises(sharedlog.LogUnavailable) as caught:
        producer.publish("s", "next")
    assert caught.value.appended is False
    producer.publish("s", "next")
    assert texts(log, "s") == ["next"]
    assert pending(log) == []


def test_a_transaction_goes_on_after_an_append_of_unknown_outcome(log):
    """What was taken is there once, what was not is not (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    engine.faults = ["late"]
    taken = []
    with mine.producer().transaction() as transaction:
        for value in LARGE:
            try:
                transaction.publish("s", value)
            except sharedlog.AppendUnknown:
                continue
            taken.append(value)
    assert len(taken) == len(LARGE) - 1
    assert [each.text for each in substream(log, "s", 0)] == taken


def test_a_full_store_rolls_back_and_frees_the_producer(log):
    """Nothing of the transaction is read (L8)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    producer = mine.producer()
    engine.faults = ["", LogFull("no room"), LogFull("no room")]
    transaction = producer.transaction()
    with pytest.raises(sharedlog.LogFull):
        run(transaction, LARGE)
    assert transaction.committed is False
    producer.publish("s", "next")
    assert texts(log, "s") == ["next"]
    assert pending(log) == []


@pytest.mark.parametrize("at", ["publish", "commit"])
def test_a_transaction_that_was_retired_says_so_and_the_producer_goes_on(log, at):
    """It was rolled back by that; the next one is another producer's (C2)."""
    log.stream("s", 1)
    producer = log.producer()
    transaction = producer.transaction()
    for value in LARGE:
        transaction.publish("s", value)
    (mine,) = pending(log)
    log._run(retire(mine))
    with pytest.raises(sharedlog.ProducerRetired):
        run(transaction, LARGE if at == "publish" else [])
    assert transaction.committed is False
    producer.publish("s", "next")
    assert texts(log, "s") == ["next"]


@pytest.mark.parametrize("fault", ["lost", "late", LogFull("no room")])
def test_a_rollback_that_a_sweeper_did_first_is_done(log, fault):
    """Whoever undid what was pending, the next transaction begins (C1, C2)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    producer = mine.producer()
    engine.faults = ["", "", fault]
    with pytest.raises(ZeroDivisionError):
        run(producer.transaction(), LARGE, ZeroDivisionError())
    log._run(retire(producer.sender.producer.id))
    producer.publish("s", "next")
    assert texts(log, "s") == ["next"]


def test_a_producer_that_was_retired_between_transactions_is_replaced(log):
    """Nothing of the next was in the log (L3)."""
    log.stream("s", 1)
    for values in (["a"], LARGE):
        producer = log.producer()
        producer.publish("s", "first")
        (mine,) = {producer.sender.producer.id}
        log._run(retire(mine))
        with producer.transaction() as transaction:
            for value in values:
                transaction.publish("s", value)
    assert len(substream(log, "s", 0)) == 3 + len(LARGE)


def test_an_interrupt_within_a_commit_leaves_an_outcome_that_is_found_out(log):
    """Whether it arrived or not: readers see all of it or nothing (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    producer = mine.producer()
    transaction = producer.transaction()
    transaction.publish("s", "a")

    def interrupt(commit) -> None:
        engine.before = lambda commit: None
        raise KeyboardInterrupt

    engine.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        transaction.commit()
    assert transaction.committed is None
    producer.publish("s", "b")
    assert transaction.committed is True
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]


def test_a_slow_transaction_shows_signs_of_life(log, monkeypatch):
    """By appending what waits, so that no sweeper takes it for abandoned (C2)."""
    log.stream("s", 1)
    monkeypatch.setattr("sharedlog._log.transaction.SIGN_S", 0.0)
    with log.producer().transaction() as transaction:
        for value in LARGE:
            transaction.publish("s", value)
        tail = log._engine.tail()
        transaction.publish("s", "a")
        transaction.publish("s", "b")
        assert log._engine.tail() > tail
    assert [each.text for each in substream(log, "s", 0)] == [*LARGE, "a", "b"]


def test_under_a_fence_that_was_raised_nothing_is_committed(log):
    """Whoever raised it took over (L4)."""
    log.stream("s", 1)
    fence = log.raise_fence("writer")
    older, both = log.producer(fence=fence), log.producer(fence=fence)
    older.publish("s", "a")
    large = both.transaction()
    for value in LARGE:
        large.publish("s", value)
    newer = log.producer(fence=log.raise_fence("writer"))
    with pytest.raises(sharedlog.Fenced):
        large.commit()
    with pytest.raises(sharedlog.Fenced):
        older.publish("s", "b")
    newer.publish("s", "c")
    assert texts(log, "s") == ["a", "c"]
    assert pending(log) == []


@pytest.mark.faults
@pytest.mark.parametrize("engine", SHARED)
def test_a_process_killed_in_transactions_leaves_whole_ones(engine, tmp_path, request):
    """What it was told to be committed is read, nothing is torn (DESIGN-LOG §13)."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    with sharedlog.create(url) as log:
        log.stream("s", 2)
        for _ in range(3):
            with Forked(["tests.sharedlog.log.transactor", url]) as child:
                told = [child.stdout.readline() for _ in range(5)]
                # Between two appends of a transaction, or in one: wherever it is by now.
                child.send_signal(signal.SIGKILL)
                told += child.stdout.read().splitlines()
            name = told[0].split()[0].decode()
            known = {int(line.split()[1]) for line in told if line.count(b" ") == 2}
            read = [each.text.split()[:3] for each in messages(log, "s")]
            mine = [(int(number), int(part)) for run, number, part in read if run == name]
            committed = {number for number, _ in mine}
            assert known <= committed <= known | {max(known) + 1}
            assert sorted(mine) == [(n, part) for n in sorted(committed) for part in range(30)]
