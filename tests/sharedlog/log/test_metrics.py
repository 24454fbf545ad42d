"""Metrics of a log: what this process did, and what the log says when it is scraped (DESIGN §9)."""

import secrets
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

import sharedlog
import sharedlog.aio
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.query.closing import BatchSummary, close
from sharedlog._engines.driving import carry_out
from sharedlog._log.observing import told_name
from sharedlog.metrics import PrometheusLogObserver
from tests.sharedlog.core.test_query import Driver
from tests.sharedlog.faulty import FaultyEngine


class Watched:
    """A log in memory with an observer of its own, and what that says of it."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.observer = PrometheusLogObserver(self.registry)
        self.url = f"memory:{secrets.token_hex(8)}"

    def value(self, name, /, **labels):
        return self.registry.get_sample_value(f"sharedlog_{name}", {"log": self.url, **labels})


@pytest.fixture
def watched():
    return Watched()


@pytest.fixture
def log(watched):
    with sharedlog.create(watched.url, observer=watched.observer) as made:
        made.stream("s", 2)
        yield made


def test_appends_are_counted(log, watched):
    """Appends, their entries and bytes, of single messages and of transactions (DESIGN §9)."""
    log.publish("s", b"x" * 1000)
    with log.producer().transaction() as transaction:
        transaction.publish("s", b"one")
        transaction.publish("s", b"two")
    assert watched.value("appends_total") == 2
    assert watched.value("appended_entries_total") == 3
    assert 1000 < watched.value("appended_bytes_total") < 2000
    assert watched.value("append_seconds_count") == 2


async def test_an_event_loop_counts_alike(watched):
    """Publishing and following of asyncio are told as those of threads (DESIGN §9)."""
    async with await sharedlog.aio.create(watched.url, observer=watched.observer) as log:
        await log.stream("s", 2)
        await log.publish("s", b"one")
        with pytest.raises(sharedlog.NoSuchStream):
            await log.publish("none", b"one")
        async with log.follow("s") as following:
            async for _ in following:
                break
    assert watched.value("appends_total") == 1
    assert watched.value("refused_total", reason="NoSuchStream") == 1
    assert watched.value("delivered_total", stream="s") == 1


def test_refusals_are_counted_by_reason(log, watched):
    """What cannot be published, and transactions that are refused, by the error's name (L3, L4)."""
    with pytest.raises(sharedlog.NoSuchStream):
        log.publish("none", b"x")
    with pytest.raises(sharedlog.InvalidRequest):
        log.publish("s", b"x" * (1 << 20))
    with log.producer().transaction() as transaction, pytest.raises(sharedlog.InvalidRequest):
        transaction.publish("s", b"x" * ((1 << 20) - 10))
    old = log.raise_fence("writer")
    log.raise_fence("writer")
    with pytest.raises(sharedlog.Fenced), log.producer(fence=old).transaction() as transaction:
        transaction.publish("s", b"late")
    assert watched.value("refused_total", reason="NoSuchStream") == 1
    assert watched.value("refused_total", reason="InvalidRequest") == 2
    assert watched.value("refused_total", reason="Fenced") == 1
    assert watched.value("appends_total") is None


def test_holds_and_spans_are_looked_at(log, watched):
    """Lag of each hold in entries and seconds, what is pending, and the log's ends (L6, C1)."""
    with log.follow("s", name="billing") as following:
        log.publish("s", b"one", key="a")
        pending = log.producer().transaction()
        pending.publish("s", b"two", key="a")
        pending.pend()
        labels = {"name": "billing", "substream": "s/1"}
        found = {each.tag for each in log.holds("billing")}
        assert found == {"s/0", "s/1"}
        [message] = following.poll()
        labels["substream"] = f"s/{message.substream}"
        assert watched.value("hold_lag_entries", **labels) == 2
        assert 0 < watched.value("hold_lag_seconds", **labels) < 60
        assert watched.value("hold_overdue", **labels) == 0
        assert watched.value("open_spans") == 1
        assert 0 < watched.value("oldest_span_seconds") < 60
        assert watched.value("tail_lsn") == watched.value("entries") == 2
        assert watched.value("first_lsn") == 1
        pending.roll_back()
        following.done(message)
    assert watched.value("hold_lag_entries", **labels) == 1, "the end of what was rolled back"
    assert watched.value("open_spans") == watched.value("oldest_span_seconds") == 0


def test_queries_of_spark_are_looked_at(log, watched):
    """What each committed, how much was undone, and what is under way (DESIGN-LOG §16)."""
    engine = log._engine
    first = Driver(engine, "a")
    first.run_batch(0, "one 0", "two 1")
    late = first.plan(1)
    first.task(late, ["lost 0"])
    second = Driver(engine, "b").plan(1)
    named = Driver(engine, "b").task(second, ["three 0", "four 0"], ["five 1"])
    labels = {"name": "q"}
    assert watched.value("query_batch", **labels) == 0
    # What the older plan left is undone with the next commit.
    assert watched.value("query_undone_total", **labels) == 0
    assert watched.value("query_pending", **labels) == 2
    carry_out(engine, close(second, BatchSummary((named,), 3, 0, entries=3)))
    assert watched.value("query_batch", **labels) == 1
    assert watched.value("query_batches_total", **labels) == 2
    assert watched.value("query_rows_total", **labels) == 5
    assert watched.value("query_entries_total", **labels) == 3
    assert watched.value("query_undone_total", **labels) == 1
    assert watched.value("query_pending", **labels) == 0


def test_waits_are_told_once_a_message_comes(log, watched):
    """For how long a follower had no message, and how many it got (DESIGN §9)."""
    with log.follow("s") as following:
        assert following.poll() == []
        assert watched.value("wait_seconds_count", stream="s") is None
        log.publish("s", b"one")
        log.publish("s", b"two")
        assert len(following.poll(10)) == 2
    assert watched.value("wait_seconds_count", stream="s") == 1
    assert watched.value("delivered_total", stream="s") == 2


def test_a_log_that_does_not_answer_is_not_reachable(log, watched, monkeypatch):
    """A scrape of several logs goes on where one does not answer; a closed one is not asked."""
    other = Watched()
    with sharedlog.create(other.url, observer=watched.observer):
        broken = FaultyEngine(log._engine)
        broken.tail = lambda: (_ for _ in ()).throw(LogUnavailable("no answer"))
        log._place = log._place._replace(engine=broken)
        assert watched.value("reachable") == 0
        assert watched.value("tail_lsn") is None
        assert watched.registry.get_sample_value("sharedlog_reachable", {"log": other.url}) == 1
    log.close()
    assert watched.value("reachable") is None


def test_an_observer_that_raises_breaks_nothing(caplog):
    """What it raises is logged once for each method, and the log goes on (DESIGN §9)."""

    class Broken(sharedlog.LogObserver):
        def __getattribute__(self, name):
            if name.startswith("_"):
                return object.__getattribute__(self, name)
            raise RuntimeError(name)

    with sharedlog.create(
        "memory:", observer=[Broken(), PrometheusLogObserver(CollectorRegistry())]
    ) as log:
        log.stream("s", 1)
        for each in (b"1", b"2"):
            log.publish("s", each)
        assert [each.value for each in log.read("s", 0)] == [b"1", b"2"]
    told = [each.getMessage() for each in caplog.records]
    assert sum("observer_failed" in each for each in told) == 5, told


def test_without_an_observer_nothing_is_measured(monkeypatch):
    """Nobody watches, so no report is built and no append is timed (DESIGN §9, no cost)."""

    def forbidden(*_):
        raise AssertionError("measured, and nobody asked")

    monkeypatch.setattr("sharedlog._log.observing.time", None)
    monkeypatch.setattr("sharedlog._log.log.report", forbidden)
    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        log.publish("s", b"one")
        with log.follow("s") as following:
            assert len(following.poll()) == 1


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "postgresql://me:secret@db:5432/shop?password=s&log=orders",
            "postgresql://db:5432/shop?log=orders",
        ),
        ("sqlite:////var/log.db", "sqlite:////var/log.db"),
        ("memory:x", "memory:x"),
        ("redis://:secret@host/1", "redis://host/1"),
    ],
)
def test_a_log_is_told_without_its_secrets(url, told):
    """Labels, events and spans have no password (DESIGN §9)."""
    assert told_name(url) == told


def test_reports_of_every_engine(url):
    """What is scraped can be asked of any store (L6)."""
    with sharedlog.create(url) as log:
        log.stream("s", 2, timedelta(0))
        with log.follow("s", name="billing"):
            log.publish("s", b"one", key="k")
            report = log._report()
    assert (report.first, report.tail, report.open_spans) == (1, 1, 0)
    assert sorted(each.seconds > 0 for each in report.holds) == [False, True]
