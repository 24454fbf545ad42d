"""A handle that was closed, forked or whose file was replaced says so, and what is known (L3)."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import sharedlog
import sharedlog.aio
from tests.sharedlog.faulty import faulty
from tests.sharedlog.places import url_of
from tests.sharedlog.reads import texts


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """Of a log that is not there yet."""
    return url_of(request.param, tmp_path, request.getfixturevalue)


def check_stopped(use, kind=sharedlog.LogStopped) -> None:
    """It is told as what it is, and nothing of it is in the log."""
    with pytest.raises(kind) as caught:
        use()
    assert type(caught.value) is sharedlog.LogStopped
    assert caught.value.appended is False


def check_all_stopped(log, producer, following) -> None:
    """Each use of a log that cannot be used any more."""
    for use in (
        lambda: log.publish("s", "b"),
        lambda: producer.publish("s", "b"),
        lambda: producer.publish("s", "b"),
        lambda: log.read("s", 0),
        lambda: log.follow("s"),
        lambda: log.follow("s", name="another"),
        lambda: next(following),
        following.poll,
        lambda: log.trim(),
    ):
        check_stopped(use)


def test_a_closed_log_says_so_and_that_nothing_was_sent(log):
    """Also of what was published before, read or followed (L3)."""
    log.stream("s", 1)
    log.publish("s", "a")
    producer, following = log.producer(), log.follow("s")
    assert [each.text for each in following.poll()] == ["a"]
    producer.publish("s", "a")
    assert len(following.poll(5)) == 1
    log.close()
    check_all_stopped(log, producer, following)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_log_whose_file_was_taken_away_says_so(tmp_path, replaced):
    """Replaced, or removed: nothing was sent (L3)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    for first in ("publish", "read"):
        with sharedlog.create(url) as log:
            log.stream("s", 1)
            log.publish("s", "a")
            producer, following = log.producer(), log.follow("s")
            producer.publish("s", "a")
            assert following.poll()
            following.poll()
            if replaced:
                shutil.copy(tmp_path / "log.db", tmp_path / "copy")
                (tmp_path / "copy").replace(tmp_path / "log.db")
            else:
                (tmp_path / "log.db").unlink()
            if first == "publish":
                check_stopped(lambda log=log: log.publish("s", "b"))
            check_all_stopped(log, producer, following)
        for each in tmp_path.iterdir():
            each.unlink()


def test_what_was_under_way_when_the_log_was_closed_is_unknown_and_says_why(log):
    """No time passed; and what came behind it was not sent (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, timedelta(hours=1))
    mine.publish("s", "a")
    engine.faults = ["lost"] * 100_000
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.publish, "s", "b")
        while engine.appends < 3:
            threading.Event().wait(0.001)
        mine.close()
        with pytest.raises(sharedlog.AppendUnknown, match="the log was closed") as caught:
            waiting.result(60)
    assert "3600" not in str(caught.value)
    assert "within" not in str(caught.value)
    with pytest.raises(sharedlog.AppendUnknown, match="opened again"):
        mine.settle(caught.value)
    check_stopped(lambda: mine.publish("s", "c"))


def test_reading_a_log_that_does_not_answer_is_never_of_unknown_outcome(log):
    """Its error is the store's, and a public one (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log, timedelta(0))
    mine.publish("s", "a")

    def silent(*_) -> None:
        raise sharedlog.LogUnavailable("no answer")

    engine.get = engine.scan = engine.read = silent
    for use in (lambda: mine.read("s", 0), lambda: mine.follow("s"), lambda: mine.trim()):
        with pytest.raises(sharedlog.LogUnavailable, match="no answer") as caught:
            use()
        assert type(caught.value) is sharedlog.LogUnavailable


def test_what_rode_along_with_an_interrupted_append_is_unknown_and_says_so(log):
    """It is told of the signal, not of a time; asking again finds it (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    mine.publish("s", "0")
    under_way, release = threading.Event(), threading.Event()
    appends = engine.appends

    def hold(commit) -> None:
        if engine.appends == appends:
            under_way.set()
            assert release.wait(60)
        elif len(commit.entries) == 2:
            engine.before = lambda commit: None
            raise KeyboardInterrupt

    engine.before = hold
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(mine.publish, "s", "1")
        assert under_way.wait(60)
        others = [pool.submit(mine.publish, "s", text) for text in ("2", "3")]
        while mine._publisher._lead.waiting < 2:
            threading.Event().wait(0.001)
        release.set()
        first.result(60)
        errors = [each.exception(60) for each in others]
    assert sorted(type(each).__name__ for each in errors) == ["AppendUnknown", "KeyboardInterrupt"]
    unknown = next(each for each in errors if isinstance(each, sharedlog.AppendUnknown))
    assert "interrupted by a signal" in str(unknown)
    assert "within" not in str(unknown)
    mine.settle(unknown)
    assert texts(log, "s") == ["0", "1", "2", "3"]
