"""Processes that write one file take turns, also where nobody pauses (DESIGN-LOG §12)."""

import itertools
import re
import threading
from contextlib import closing

import pytest

from sharedlog._core.commit import Commit, Put
from sharedlog._engines.sqlite import SqliteEngine, create, file
from sharedlog._engines.sqlite.file import WriteFairness
from tests.helpers.forked import Forked
from tests.helpers.waiting import until

_EACH = 60
# Of so many commits without one of the other's.
_LONG = 5
_WRITER = re.compile(rb"([ab])\.\d+\.0")


@pytest.fixture
def beside(tmp_path):
    """A file that all who write have."""
    (tmp_path / "note").touch()
    return tmp_path / "note"


@pytest.fixture
def path(tmp_path):
    """A log."""
    create(tmp_path / "log.db")
    return tmp_path / "log.db"


def put(engine, value):
    """Commit something."""
    engine.commit(Commit(puts=(Put("k", value),)))


def test_who_waits_comes_before_who_has_just_written(path, monkeypatch):
    """However fast that one begins again."""
    monkeypatch.setattr(file, "_GIVE_S", 3600.0)

    with closing(SqliteEngine(path)) as engine, closing(SqliteEngine(path)) as other:
        for _ in range(5):
            waiting = threading.Thread(target=put, args=(other, b"waited"))
            with engine._file.writing() as connection:
                connection.execute("SELECT 1")
                waiting.start()
                until(lambda: other._file._fairness._waits, "it waits for its turn")
            put(engine, b"written again")
            waiting.join()
            assert engine.get(("k",)) == {"k": b"written again"}


def test_one_that_was_stopped_while_it_waited_is_passed_over(beside, monkeypatch):
    """Others lose that time once, and not with each commit."""
    monkeypatch.setattr(file, "_GIVE_S", 0.0)
    monkeypatch.setattr(file, "_PASS_OVER_S", 3600.0)
    paused = []
    with closing(WriteFairness(beside)) as mine, closing(WriteFairness(beside)) as stopped:
        stopped.waits()
        assert stopped._waits
        mine.give_way(paused.append)
        monkeypatch.setattr(file, "_GIVE_S", 3600.0)
        mine.give_way(paused.append)
        assert paused == []
        monkeypatch.setattr(mine, "_passed_over_until", 0.0)
        mine.give_way(lambda _: stopped.came())
        mine.give_way(paused.append)
        assert paused == []


def test_of_two_only_one_is_given_way_to(beside):
    """The other one waits as it would without; who closes waits no more."""
    paused = []
    with (
        closing(WriteFairness(beside)) as one,
        closing(WriteFairness(beside)) as other,
        closing(WriteFairness(beside)) as third,
    ):
        one.waits()
        other.waits()
        assert (one._waits, other._waits) == (True, False)
        other.came()
        third.give_way(lambda _: one.close())
        third.give_way(paused.append)
        assert paused == []
    assert WriteFairness(beside.with_name("none")).give_way(paused.append) is None
    assert not beside.with_name("none").exists()


@pytest.mark.long
def test_two_processes_that_append_without_pause_take_turns(path):
    """Neither is kept out by the other's commits (§12)."""
    writers = {
        name: Forked(["tests.sharedlog.engines.writer", f"sqlite:///{path}", name], text=True)
        for name in "ab"
    }
    try:
        for each in writers.values():
            each.stdout.readline()
        with closing(SqliteEngine(path)) as engine:
            begin = engine.tail()
            until(lambda: engine.tail() > begin + 6 * _EACH, "they append")
            rows = engine.read(begin, 6 * _EACH).rows
    finally:
        for each in writers.values():
            each.kill()
            each.wait()
            each.stdout.close()
    who = [_WRITER.search(row.body)[1] for row in rows[::3]]
    runs = [len(list(run)) for _, run in itertools.groupby(who)]
    # A process that the kernel gives no time waits for that, and not for its turn.
    assert sum(each for each in runs if each > _LONG) < len(who) / 3, runs
