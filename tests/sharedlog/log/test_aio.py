"""The log for asyncio keeps what the other one keeps (DESIGN-LOG §12, §13)."""

import asyncio
import gc
import threading
from datetime import timedelta

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._aio.threads import Threads
from sharedlog._core.producers import OPEN
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import messages, substream, texts

LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]
NOW = timedelta(0)


def over(log, timeout=timedelta(seconds=30)):
    """One for asyncio over the engine of a log that is open, and that engine's faults."""
    mine, engine = faulty(log, timeout)
    return sharedlog.aio.Log(mine, Threads()), engine


async def test_it_creates_opens_and_publishes(url):
    """As ``sharedlog`` does; its positions are those that readers see (C3)."""
    with pytest.raises(sharedlog.NoSuchLog):
        await sharedlog.aio.open(url)
    async with await sharedlog.aio.create(url) as log:
        await log.stream("s", 3)
        async with await sharedlog.aio.open(url, incarnation=log.incarnation) as other:
            positions = await asyncio.gather(
                *(other.publish("s", str(number)) for number in range(50))
            )
            assert [each.name for each in await other.streams()] == ["s"]
            assert other.durability == log.durability
        with sharedlog.open(url) as there:
            where = {each.text: each.position for each in messages(there, "s")}
        assert [where[str(number)] for number in range(50)] == positions
    with pytest.raises(sharedlog.LogUnavailable):
        await log.publish("s", "a")


async def test_tasks_that_meet_share_appends(log):
    """While one is under way the others gather (DESIGN-LOG §12)."""
    log.stream("s", 1)
    mine, engine = over(log)
    await mine.stream("s")
    await asyncio.gather(*(mine.publish("s", str(number)) for number in range(100)))
    assert engine.appends <= 2
    assert [each.text for each in substream(log, "s", 0)] == [str(each) for each in range(100)]


async def test_tasks_that_were_told_travel_with_those_who_wait(log):
    """Else two halves of them would take turns (DESIGN-LOG §12)."""
    log.stream("s", 1)
    mine, engine = over(log)
    await mine.stream("s")

    async def publish(task: int) -> None:
        for number in range(10):
            await mine.publish("s", f"{task}.{number}")

    under_way, release = threading.Event(), threading.Event()

    def hold(commit) -> None:
        under_way.set()
        assert release.wait(60)

    engine.before = hold
    publishing = [asyncio.create_task(publish(0))]
    await asyncio.to_thread(under_way.wait, 60)
    publishing += [asyncio.create_task(publish(task)) for task in range(1, 10)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*publishing)
    assert engine.appends <= 12
    assert len(substream(log, "s", 0)) == 100


@pytest.mark.parametrize("fault", ["lost", "late"])
async def test_an_outcome_that_stays_unknown_is_settled(log, fault):
    """By asking again (L3)."""
    log.stream("s", 1)
    mine, engine = over(log, NOW)
    engine.faults = [fault]
    with pytest.raises(sharedlog.AppendUnknown) as caught:
        await mine.publish("s", "a")
    position = await mine.settle(caught.value)
    await mine.publish("s", "b")
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]
    assert substream(log, "s", 0)[0].position == position


async def test_a_cancelled_publish_is_of_unknown_outcome_and_resolved_before_the_next(log):
    """What was not sent yet is not sent (L3)."""
    log.stream("s", 1)
    mine, engine = over(log)
    under_way, release = threading.Event(), threading.Event()

    def hold(commit) -> None:
        under_way.set()
        assert release.wait(60)

    engine.before = hold
    engine.faults = ["late"]
    sent = asyncio.create_task(mine.publish("s", "sent"))
    await asyncio.to_thread(under_way.wait, 60)
    waiting = asyncio.create_task(mine.publish("s", "waits"))
    following = asyncio.create_task(mine.publish("s", "next"))
    await asyncio.sleep(0)
    for task in (sent, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    release.set()
    await following
    assert [each.text for each in substream(log, "s", 0)] == ["sent", "next"]


@pytest.mark.parametrize("values", [[], ["a", "b"], LARGE])
async def test_transactions_commit_and_roll_back(log, values):
    """Readers see all of one or nothing (DESIGN-LOG §13)."""
    log.stream("s", 1)
    mine, _ = over(log)
    producer = mine.producer()

    async def publish(then=None) -> sharedlog.aio.Transaction:
        async with producer.transaction() as transaction:
            for value in values:
                await transaction.publish("s", value)
            if then is not None:
                raise then
        return transaction

    with pytest.raises(ZeroDivisionError):
        await publish(ZeroDivisionError())
    done = await publish()
    assert done.committed is True
    found = substream(log, "s", 0)
    assert [each.text for each in found] == values
    assert [each.position for each in found] == done.positions == await done.settle()
    assert log._engine.scan(OPEN) == {}


async def test_tasks_take_turns_at_a_producer(log):
    """Each transaction is whole; one that was not entered takes nothing (DESIGN-LOG §13)."""
    log.stream("s", 1)
    mine, _ = over(log)
    producer = mine.producer()

    async def publish(task: int) -> None:
        async with producer.transaction() as transaction:
            for part in range(3):
                await transaction.publish("s", f"{task}.{part}")

    await asyncio.gather(*(publish(task) for task in range(10)))
    found = [each.text for each in substream(log, "s", 0)]
    assert len(found) == 30
    assert all(found[at][0] == found[at + 1][0] == found[at + 2][0] for at in range(0, 30, 3))
    with pytest.raises(sharedlog.InvalidRequest, match="async with"):
        await producer.transaction().publish("s", "a")


@pytest.mark.parametrize("values", [[], ["lost"]], ids=["empty", "small"])
async def test_a_transaction_that_is_dropped_is_undone_and_the_next_one_says_so(log, values):
    """Entered by hand, and never left: its producer's next one waited for good (§13)."""
    log.stream("s", 1)
    mine, _ = over(log)
    producer = mine.producer()
    dropped = producer.transaction()
    await dropped.__aenter__()
    for value in values:
        await dropped.publish("s", value)
    waiting = asyncio.create_task(producer.publish("s", "waits"))
    await asyncio.sleep(0)
    del dropped
    gc.collect()
    with pytest.raises(sharedlog.InvalidRequest, match="dropped, neither committed"):
        await asyncio.wait_for(waiting, 30)
    await producer.publish("s", "kept")
    # One that was never entered has nothing to give back, nor has one that has ended.
    producer.transaction()
    gc.collect()
    await producer.publish("s", "too")
    assert texts(log, "s") == ["kept", "too"]


@pytest.mark.parametrize("fault", ["", "lost", "late"])
async def test_a_commit_that_is_cancelled_goes_on_and_the_next_waits_for_it(log, fault):
    """Its outcome is known before the next transaction begins (L3)."""
    log.stream("s", 1)
    mine, engine = over(log)
    producer = mine.producer()
    under_way, release = threading.Event(), threading.Event()

    def hold(commit) -> None:
        under_way.set()
        assert release.wait(60)

    engine.before = hold
    engine.faults = [fault]
    cancelled = asyncio.create_task(producer.publish("s", "a"))
    await asyncio.to_thread(under_way.wait, 60)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    following = asyncio.create_task(producer.publish("s", "b"))
    release.set()
    await following
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]


async def test_a_task_cancelled_within_a_transaction_rolls_back(log):
    """Or before it begins, while another one has its turn (C1)."""
    log.stream("s", 1)
    mine, _ = over(log)
    producer = mine.producer()
    inside = asyncio.Event()

    async def hang() -> None:
        async with producer.transaction() as transaction:
            for value in LARGE:
                await transaction.publish("s", value)
            inside.set()
            await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    await inside.wait()
    waiting = asyncio.create_task(producer.publish("s", "never"))
    await asyncio.sleep(0)
    for task in (waiting, hanging):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await producer.publish("s", "next")
    assert texts(log, "s") == ["next"]
    assert log._engine.scan(OPEN) == {}


async def test_names_and_fences_are_those_of_the_log(log):
    """A name goes on where it stopped, a fence keeps zombies out (L3, L4)."""
    log.stream("s", 1)
    mine, _ = over(log)
    old = mine.producer("relay", fence=await mine.raise_fence("f"))
    await old.publish("s", "a", seq=5)
    assert (await old.last(), old.name) == (5, "relay")
    await mine.raise_fence("f")
    with pytest.raises(sharedlog.Fenced):
        await old.publish("s", "b")
    async with mine.producer("relay").transaction(seq=9, follows=5) as transaction:
        await transaction.publish("s", "c")
    assert transaction.seq == 9
    assert texts(log, "s") == ["a", "c"]


async def test_it_sweeps_and_trims_in_threads_of_its_own(log):
    """As ``sharedlog`` does; what a round did is told on the event loop (C2, L6)."""
    log.stream("s", 1, NOW)
    mine, _ = over(log)
    transaction = log.producer().transaction()
    for value in LARGE:
        transaction.publish("s", value)
    sweeper = mine.sweeper(timedelta(milliseconds=50))
    async with sweeper:
        while log._engine.scan(OPEN):
            await asyncio.sleep(0.005)
        assert sweeper.works
    assert not sweeper.works
    for number in range(5):
        log.publish("s", str(number))
    told = asyncio.Queue()
    thread = threading.current_thread()
    async with mine.trim_every(
        timedelta(seconds=60),
        told=lambda found: told.put_nowait((found, threading.current_thread())),
    ):
        outcome, on = await told.get()
    assert (outcome.trimmed.whole, on) == (log._engine.tail(), thread)
    assert await mine.sweeper(timedelta(minutes=1)).round() == []


async def test_a_sweeper_outlives_no_log_that_is_closed(url):
    """Its thread ends, and leaving it does not hang (C2)."""
    async with await sharedlog.aio.create(url) as log:
        async with log.sweeper(timedelta(milliseconds=50)) as sweeper:
            await log.close()
        assert not sweeper.works
