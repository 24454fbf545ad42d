"""A log is trimmed on a schedule by one of those that were asked to (DESIGN-LOG §12, L4, L6)."""

import contextlib
import itertools
import secrets
import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.commit import Refused
from sharedlog._core.errors import Fenced, LogFull
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import do
from sharedlog._log import trimming
from tests.helpers.log_servers import shared_postgres
from tests.helpers.waiting import until
from tests.sharedlog.logs import carry_out_from, to_commit

__all__ = ["shared_postgres"]


@pytest.fixture
def filled(log):
    log.stream("s", 1, timedelta(0))
    for number in range(10):
        log.publish("s", f"{number}")
    return log


def test_who_was_replaced_trims_no_more(filled):
    """By a fence, so that one that was only slow does not (L4)."""
    first = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    second = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    with pytest.raises(Fenced):
        filled._run(trim(Committers(), 10**17, 0, fence=first))
    assert filled._run(trim(Committers(), 10**17, 0, fence=second)).rows == 9


def test_a_trim_on_its_way_is_refused_once_another_took_over(filled):
    """Judged in the step that would declare it (L4)."""
    fence = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    rule = trim(Committers(), 10**17, 0, fence=fence)
    declaring = to_commit(filled._engine, rule)
    filled._run(raise_fence(fence.name))
    with pytest.raises(Refused) as caught:
        do(filled._engine, declaring)
    with pytest.raises(Fenced):
        carry_out_from(filled._engine, rule, caught.value)
    assert len(filled.follow("s").poll()) == 10


def test_wall_clocks_that_jump_move_the_turn_to_nobody(filled, url, monkeypatch):
    """Neither the one's that trims nor the other's: turns are measured, not dated (L4)."""
    every, told = timedelta(milliseconds=5), {"first": 0, "second": 0}

    def teller(name):
        def tell(found):
            assert not isinstance(found, Exception)
            told[name] += 1

        return tell

    days = itertools.cycle((0, 40, -40))
    monkeypatch.setattr(trimming, "_now_us", lambda: next(days) * 86_400_000_000 + 2 * 10**15)
    with filled.trim_every(every, told=teller("first")), sharedlog.open(url) as other:
        until(lambda: told["first"], "it trims")
        with other.trim_every(every, told=teller("second")):
            before = told["first"]
            until(lambda: told["first"] > before + 10, "it goes on")
            assert told["second"] == 0


def test_threads_of_two_programs_trim_in_turn(filled, url):
    """One does, and is followed by the other at once when it is closed; each round is told."""
    told = {"first": [], "second": []}
    came = {name: threading.Event() for name in told}

    def teller(name):
        def tell(found):
            told[name].append(found)
            came[name].set()

        return tell

    every = timedelta(milliseconds=20)
    first = filled.trim_every(every, told=teller("first"))
    assert came["first"].wait(30)
    with sharedlog.open(url) as other, other.trim_every(every, told=teller("second")):
        came["first"].clear()
        assert came["first"].wait(30)
        assert told["second"] == []
        first.close()
        assert came["second"].wait(30)
    assert not any(isinstance(each, Exception) for each in told["first"] + told["second"])
    assert len(filled.follow("s").poll()) == 1


def test_a_trimmer_whose_clock_jumped_ahead_takes_nothing_young(log, monkeypatch):
    """Three days, with a retention of a day: no clock alone makes anything old (L6)."""
    log.stream("s", 1)
    for number in range(20):
        log.publish("s", f"{number}")
    now_us = trimming._now_us
    monkeypatch.setattr(trimming, "_now_us", lambda: now_us() + 3 * 86_400_000_000)
    outcome = log.trim()
    assert (outcome.rows, outcome.kept_by) == (0, "the retention")
    assert len(log.follow("s").poll()) == 20


def test_a_retention_is_longer_than_the_streams_or_refused(filled):
    """And what is younger stays (L6)."""
    filled.stream("t", 1, timedelta(hours=1))
    with pytest.raises(sharedlog.InvalidRequest):
        filled.trim(timedelta(minutes=1))
    assert filled.trim().rows == 0
    assert filled.trim(timedelta(days=1)).rows == 0
    with pytest.raises(sharedlog.InvalidRequest):
        filled.trim_every(timedelta(0))


@pytest.mark.parametrize("room", [0, 4])
def test_a_declared_trim_is_told_though_the_store_has_no_room_to_remove_rows(
    filled, room, monkeypatch, caplog
):
    """With what it removed and what remains, by an event, too; the next trim goes on (L6, L8)."""
    engine = type(filled._engine)
    remove = engine.remove

    def full(self, through):
        remove(self, min(through, room))
        if through > room:
            raise LogFull("no room")

    def trimmed():
        found = filled.trim()
        assert found.trimmed.removed == 9
        return found.rows, found.remaining

    with monkeypatch.context() as patched:
        patched.setattr(engine, "remove", full)
        assert trimmed() == (room, 9 - room)
        assert f"event='log_trim_without_room' log='{filled._place.name}' remaining={9 - room}" in (
            caplog.text
        )
        assert trimmed() == (0, 9 - room)
        assert len(filled.follow("s").poll()) == 1
        told = []
        trimming = filled.trim_every(timedelta(milliseconds=5), told=told.append)
        until(lambda: told, "a round on a full store")
    with trimming:
        until(lambda: told[-1].remaining == 0, "a round with room")
    assert told[0].remaining == 9 - room
    assert sum(each.rows for each in told) == 9 - room
    assert trimmed() == (0, 0)


@contextlib.contextmanager
def full_sqlite(log, _):
    """No page is left, and a removed row needs some."""
    with log._engine._file.writing() as connection:
        connection.execute("CREATE TABLE ballast (bytes BLOB)")
        connection.execute(
            "CREATE TRIGGER full BEFORE DELETE ON sharedlog_entry "
            "BEGIN INSERT INTO ballast VALUES (zeroblob(100000)); END"
        )
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    yield
    with log._engine._file.writing() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")


@contextlib.contextmanager
def full_postgres(log, server):
    """As PostgreSQL tells it that the disk is full."""
    schema = log._engine._connection.schema
    with server.connect(autocommit=True) as connection:
        connection.execute(
            f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE "
            "EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$; CREATE TRIGGER f BEFORE "
            f"DELETE ON {schema}.entry FOR EACH ROW EXECUTE FUNCTION {schema}.full()"
        )
        yield
        connection.execute(f"DROP TRIGGER f ON {schema}.entry")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_trim_of_a_store_that_is_really_full(request, tmp_path, kind):
    """The declaration has room, and the removal has none: all of it is of the next trim (L8)."""
    server = request.getfixturevalue("shared_postgres") if kind == "postgres" else None
    url = server.url(log=secrets.token_hex(8)) if server else f"sqlite:///{tmp_path / 'log.db'}"
    full = full_postgres if server else full_sqlite
    with sharedlog.create(url) as log:
        log.stream("s", 1, timedelta(0))
        for number in range(10):
            log.publish("s", f"{number}")
        with full(log, server):
            found = log.trim()
            assert (found.trimmed.removed, found.rows, found.remaining) == (9, 0, 9)
        found = log.trim()
        assert (found.trimmed.removed, found.rows, found.remaining) == (9, 9, 0)
        assert [each.value for each in log.follow("s").poll()] == [b"9"]
