"""One message, published from any thread, is in the log once (DESIGN-LOG §12, L3)."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.errors import LogFull
from sharedlog._core.restoring import restore
from sharedlog._core.spans import retire
from sharedlog._core.streams import fnv1a
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import messages, substream, texts

NOW = timedelta(0)


def test_what_is_published_is_read_where_publish_said(log):
    """With its key and headers; its position is the reader's (DESIGN-LOG §13, C3)."""
    log.stream("orders", 4)
    placed = [
        log.publish(
            "orders", f"order {number}", key=f"customer {number}", headers={"n": str(number)}
        )
        for number in range(20)
    ]
    found = messages(log, "orders")
    assert {each.position for each in found} == set(placed)
    for each in found:
        assert each.substream == fnv1a(each.key) % 4
        number = each.headers["n"].decode()
        assert (each.text, each.key.decode()) == (f"order {number}", f"customer {number}")
    assert sharedlog.Position.parse(str(placed[0])) == placed[0]


def test_messages_without_a_key_take_turns(log):
    """Every substream gets as many (DESIGN-LOG §12)."""
    stream = log.stream("s", 4)
    for number in range(8):
        log.publish(stream, str(number))
    assert [len(substream(log, "s", each)) for each in range(4)] == [2, 2, 2, 2]


def test_an_unknown_stream_is_refused_until_it_is_made(log, url):
    """By any program (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.NoSuchStream, match=r"log\.stream\('s'\)"):
        log.publish("s", b"a")
    with sharedlog.open(url) as other:
        other.stream("s")
    log.publish("s", b"a")
    assert texts(log, "s") == ["a"]


def test_what_is_too_large_is_refused_and_others_go_on(log):
    """Nothing of it is in the log (DESIGN-LOG §12)."""
    log.stream("s")
    for value, key in ((b"x" * (2 << 20), None), (b"", b"k" * 2000), (b"x" * (1 << 20), b"k")):
        with pytest.raises(sharedlog.InvalidRequest) as caught:
            log.publish("s", value, key)
        assert caught.value.appended is False
    log.publish("s", b"x" * 1_000_000)
    assert len(messages(log, "s")) == 1


def test_threads_that_meet_share_appends_and_lose_nothing(log):
    """Each message is there once, at its own position, each thread's in order (L3)."""
    log.stream("s", 3)
    mine, _ = faulty(log)
    meeting = threading.Barrier(8)

    def publish(thread: int) -> list[sharedlog.Position]:
        meeting.wait(60)
        return [mine.publish("s", f"{thread}.{number:03}", key=str(thread)) for number in range(50)]

    with ThreadPoolExecutor(8) as pool:
        placed = [each.result(60) for each in [pool.submit(publish, n) for n in range(8)]]
    found = messages(log, "s")
    assert sorted(each.text for each in found) == [
        f"{t}.{n:03}" for t in range(8) for n in range(50)
    ]
    where = {each.text: each.position for each in found}
    for thread, positions in enumerate(placed):
        assert positions == sorted(positions)
        assert positions == [where[f"{thread}.{number:03}"] for number in range(50)]


def test_messages_that_wait_travel_in_one_append(log):
    """While one is under way the others gather (DESIGN-LOG §12)."""
    log.stream("s", 3)
    mine, engine = faulty(log)
    first, release = threading.Event(), threading.Event()

    def hold(commit) -> None:
        first.set()
        assert release.wait(60)

    engine.before = hold
    with ThreadPoolExecutor(9) as pool:
        publishing = [pool.submit(mine.publish, "s", "0")]
        assert first.wait(60)
        publishing += [pool.submit(mine.publish, "s", str(number)) for number in range(1, 9)]
        while mine._publisher._lead.waiting < 8:
            threading.Event().wait(0.001)
        release.set()
        for each in publishing:
            each.result(60)
    assert engine.appends == 2
    assert texts(log, "s") == [str(number) for number in range(9)]


def test_a_leader_lets_those_publish_again_who_were_just_told():
    """Else two halves of the threads would take turns, each with a sync (DESIGN-LOG §12)."""
    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        mine, _ = faulty(log)
        publisher = mine._publisher
        # Three were in the last append, or came meanwhile: two beside the leader may come yet.
        publisher._last, yields, arriving = 3, [], [0]

        def come(_: float) -> None:
            yields.append(len(publisher._lead._waiting))
            if len(yields) <= arriving[0]:
                publisher._lead._waiting[len(yields)] = None

        for arrivals, looks in ((0, 1), (1, 2), (2, 2)):
            yields.clear()
            publisher._lead._waiting.clear()
            arriving[0] = arrivals
            publisher._let_gather(come)
            assert len(yields) == looks
        publisher._lead._waiting.clear()
        publisher._last = 1
        publisher._let_gather(come)
        assert len(yields) == 2


@pytest.mark.parametrize("faults", [["lost"], ["late"], ["lost", "late", "lost"], ["late", "late"]])
def test_an_unanswered_append_is_sent_again_and_is_there_once(log, faults):
    """Whether it arrived or not (L3, L7)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    engine.faults = faults
    position = mine.publish("s", "a")
    mine.publish("s", "b")
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]
    assert substream(log, "s", 0)[0].position == position


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_an_outcome_that_stays_unknown_is_told_and_settled(log, fault):
    """By asking again, or before the next message: it is there once (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    engine.faults = [fault]
    with pytest.raises(sharedlog.AppendUnknown) as caught:
        mine.publish("s", "a")
    assert caught.value.appended is None
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (copy.ticket, str(copy)) == (caught.value.ticket, str(caught.value))
    if fault == "late":
        mine.publish("s", "b")
    position = mine.settle(copy)
    assert position == substream(log, "s", 0)[0].position == mine.settle(caught.value)
    mine.publish("s", "c")
    assert [each.text for each in substream(log, "s", 0)] == ["a", *("b" * (fault == "late")), "c"]


def test_what_waits_behind_an_unknown_outcome_was_not_sent(log):
    """It says so: its caller may publish it again (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    engine.faults = ["lost", "lost", "lost"]
    with pytest.raises(sharedlog.AppendUnknown) as first:
        mine.publish("s", "a")
    with pytest.raises(sharedlog.LogUnavailable, match="nothing of this") as caught:
        mine.publish("s", "b")
    assert caught.value.appended is False
    with pytest.raises(sharedlog.AppendUnknown):
        mine.settle(first.value)
    mine.publish("s", "b")
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]
    with pytest.raises(sharedlog.InvalidRequest):
        log.settle(first.value)


def test_a_full_store_is_told_at_once_and_the_log_goes_on(log):
    """The message is not there, and says so (L8)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    engine.faults = [LogFull("no room")]
    with pytest.raises(sharedlog.LogFull) as caught:
        mine.publish("s", "a")
    assert caught.value.appended is False
    mine.publish("s", "b")
    assert texts(log, "s") == ["b"]


def test_a_full_store_behind_an_unknown_attempt_leaves_the_outcome_unknown(log):
    """The first attempt may have arrived (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, NOW)
    engine.faults = ["late", LogFull("no room")]
    with pytest.raises(sharedlog.AppendUnknown) as caught:
        mine.publish("s", "a")
    with pytest.raises(sharedlog.AppendUnknown):
        mine.settle(caught.value)
    mine.settle(caught.value)
    assert texts(log, "s") == ["a"]


def _producers(log):
    return [int(key.split("/")[1]) for key in log._engine.scan("producer/") if key.count("/") == 1]


def test_a_producer_that_was_retired_is_replaced(log):
    """What it appended is answered; what was not is appended by another one (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    mine.publish("s", "a")
    log._run(retire(_producers(log)[0]))
    mine.publish("s", "b")
    assert len(_producers(log)) == 2

    def retire_it(commit) -> None:
        engine.before = lambda commit: None
        log._run(retire(max(_producers(log))))

    # Retired between an attempt that arrived and the next, which is answered.
    engine.faults = ["late"]
    appends = engine.appends

    def second(commit) -> None:
        if engine.appends > appends:
            retire_it(commit)

    engine.before = second
    mine.publish("s", "c")
    mine.publish("s", "d")
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b", "c", "d"]
    assert len(_producers(log)) == 3


def test_a_log_that_was_swapped_for_another_copy_refuses_who_opened_the_first(log):
    """By its incarnation: nobody writes on as if nothing had happened (§12)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    mine.publish("s", "a")
    with sharedlog.create("memory:") as other:
        other.stream("s", 1)
        engine.engine = other._engine
        for _ in range(2):
            with pytest.raises(sharedlog.LogForked):
                mine.publish("s", "b")
        assert texts(other, "s") == []


@pytest.mark.parametrize("watching", [None, sharedlog.LogObserver()])
def test_a_handle_from_before_the_log_was_declared_restored_writes_nothing(url, watching):
    """Whatever it would write, also under a producer that is granted anew (§12)."""
    with sharedlog.create(url, observer=watching) as log:
        log.stream("s", 1)
        log.publish("s", "a")
        log._run(restore("0123456789abcdef"))
        for write in (
            lambda: log.publish("s", "b"),
            lambda: log.producer().publish("s", "b"),
            lambda: log.producer("named").publish("s", "b"),
            lambda: log.stream("another"),
            lambda: log.raise_fence("f"),
            lambda: log.follow("s", name="me"),
        ):
            with pytest.raises(sharedlog.LogForked, match="open it again"):
                write()
        assert texts(log, "s") == ["a"]


def test_closing_ends_what_waits(log):
    """Nobody waits for a log that is closed, whatever its time is (DESIGN-LOG §12)."""
    log.stream("s", 1)
    mine, engine = faulty(log, timedelta(hours=1))
    mine.publish("s", "a")
    engine.faults = ["lost"] * 100_000
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(mine.publish, "s", "b") for _ in range(2)]
        while engine.appends < 3:
            threading.Event().wait(0.001)
        mine.close()
        for each in waiting:
            with pytest.raises(sharedlog.LogUnavailable):
                each.result(60)


def test_an_interrupt_of_who_leads_leaves_the_lead_to_the_next(log):
    """Its message's outcome is unknown to it; others go on (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)

    def interrupt(commit) -> None:
        engine.before = lambda commit: None
        raise KeyboardInterrupt

    engine.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        mine.publish("s", "a")
    mine.publish("s", "b")
    assert [each.text for each in substream(log, "s", 0)] == ["a", "b"]


def test_one_large_message_does_not_block_small_ones_where_there_is_no_room(log):
    """Its outcome is unknown, and nothing larger fits: it is given up, not waited for (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    mine.publish("s", b"first")

    def full(commit):
        if engine.appends >= 2 and sum(len(each.body) for each in commit.entries) > 1000:
            raise sharedlog.LogFull("no room")

    engine.before = full
    engine.faults = ["lost"]
    with pytest.raises(sharedlog.LogFull) as caught:
        mine.publish("s", b"x" * 2000)
    assert caught.value.appended is False
    mine.publish("s", b"small")
    engine.before = lambda commit: None
    assert [each.value for each in mine.read("s", 0)] == [b"first", b"small"]


def test_what_arrived_is_told_where_there_is_no_room(log):
    """It was appended, and only its answer was lost: the message has its position (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    mine.publish("s", b"first")
    refused = iter([sharedlog.LogFull("no room")])

    def full(commit):
        if engine.appends >= 2:
            for each in refused:
                raise each

    engine.before = full
    engine.faults = ["late"]
    position = mine.publish("s", b"x" * 2000)
    assert [each.position for each in mine.read("s", 0)][1:] == [position]
    assert mine.publish("s", b"small") > position
