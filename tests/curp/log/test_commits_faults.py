"""A group's log when something is wrong (DESIGN §7)."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from chaos.sim.group.log import LogStore, Moment
from curp._cli.command import main
from curp.log import create_log
from curp.log._commits import GroupLog, first_keys
from curp.log._creation import new_log
from curp.log._errors import (
    CorruptLog,
    LeadershipOver,
    LogUnavailable,
    NoSuchLog,
    TailMismatch,
)
from curp.log._opening import accept_loss, open_engine
from curp.log._values import LogEntry, NewLogEntry
from rifl.testing import FakeClock
from sharedlog._core.commit import Commit, Put
from sharedlog._engines.etcd.calls import TXN, get, put
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._engines.postgres.schema import script
from tests.curp.log.conformance import TERM_S, Writer, append_id
from tests.curp.log.damage.sqlite import SqliteLog
from tests.curp.logs import opened_new

pytestmark = pytest.mark.faults


class Losing(MemoryEngine):
    """An engine in memory that does what it is told, and does not answer, as often as is said."""

    lost = 0

    def commit(self, commit):
        """Do it, and lose the reply."""
        found = super().commit(commit)
        if self.lost:
            self.lost -= 1
            raise LogUnavailable("no answer")
        return found


class Armed:
    """A fault that strikes once, at the next request of a name."""

    def __init__(self, request, moment=None):
        self.request, self.moment = request, moment

    def __call__(self, request, moment):
        if (request, moment) == (self.request, self.moment):
            self.moment = None
            raise LogUnavailable(f"{request}: struck {moment.value}")


@pytest.fixture
def engine():
    """A log in memory whose replies may be lost."""
    return Losing(MemoryLog(first_keys(new_log())))


@pytest.fixture
def writer(engine):
    """A leader over it."""
    return Writer(GroupLog(engine))


def test_an_append_whose_reply_was_lost_is_there_once(engine, writer):
    """Asked again by the same handle, or by one that knows nothing of it (DESIGN §7)."""
    name = append_id()
    engine.lost = 1
    with pytest.raises(LogUnavailable):
        writer.append(b"a", b"b", append_id=name)
    other = GroupLog(engine)
    for asked in (writer.engine, other):
        again = {"configuration": 1, "expected_tail": 0, "append_id": name}
        assert asked.append([NewLogEntry(b"a"), NewLogEntry(b"b")], **again) == 2
    assert writer.append(b"c", expected_tail=2) == 3
    assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"b", b"c"]
    # Of another length it is not that append.
    with pytest.raises(TailMismatch):
        writer.append(b"a", append_id=name, expected_tail=0)


def test_a_snapshot_whose_replies_are_lost_is_saved(engine, writer):
    """Each step is recognised when it is asked again, and nothing is left over (DESIGN §7)."""
    writer.append(b"a")
    real, count = engine.commit, 0

    def commit(step):
        nonlocal count
        keys = [one.key for one in step.puts]
        count += any(key.startswith("pieces/") or key == "snapshot" for key in keys)
        engine.lost = int(any(key.startswith("pieces/") or key == "snapshot" for key in keys))
        if engine.lost and count % 2 == 0:
            engine.lost = 0
        return real(step)

    engine.commit = commit
    writer.snapshot(1, b"one" * 300_000, b"two")
    engine.commit = real
    assert list(writer.engine.load_snapshot().chunks) == [b"one" * 300_000, b"two"]
    writer.snapshot(1, b"three")
    assert len(engine.scan("pieces/")) == 1
    assert engine.scan("gone/") == {}
    assert engine.get(("saving",)) == {"saving": None}


def test_what_a_save_that_broke_off_left_goes_with_the_next(engine, writer):
    """Its pieces are known by number (DESIGN §7, invariant 8)."""
    writer.append(b"a")

    def chunks():
        yield b"new"
        yield b"er"
        raise KeyError("the state cannot be written")

    with pytest.raises(KeyError):
        writer.engine.save_snapshot(1, chunks(), configuration=writer.configuration)
    assert len(engine.scan("pieces/")) == 2
    writer.snapshot(1, b"s")
    assert len(engine.scan("pieces/")) == 1


def test_damage_is_found(engine, writer):
    """A piece, a body, the tail, the snapshot, the number: each is CorruptLog (DESIGN §7)."""
    writer.append(b"a")
    writer.snapshot(1, b"s")
    (piece,) = engine.scan("pieces/")
    for key, broken in (
        (piece, b"\x00\x00\x00\x00\x01s"),
        (piece, b"?"),
        (piece, None),
        ("snapshot", b"{"),
        ("snapshot", b"[]"),
    ):
        kept = engine.get((key,))[key]
        engine.commit(Commit(puts=(Put(key, broken),)))
        with pytest.raises(CorruptLog):
            list(writer.engine.load_snapshot().chunks)
        engine.commit(Commit(puts=(Put(key, kept),)))
    for key in ("tail", "configuration"):
        kept = engine.get((key,))[key]
        engine.commit(Commit(puts=(Put(key, b"short"),)))
        with pytest.raises(CorruptLog):
            GroupLog(engine).append(
                [NewLogEntry(b"x")], configuration=1, expected_tail=7, append_id=append_id()
            )
        engine.commit(Commit(puts=(Put(key, kept),)))
    row = engine._log.rows[0]
    engine._log.rows[0] = row._replace(body=b"short")
    with pytest.raises(CorruptLog):
        GroupLog(engine).read(0)


def test_a_log_that_was_written_on_from_an_older_copy_is_told(engine, writer):
    """By who knows the entry that was there: reader and writer (DESIGN §7)."""
    writer.append(b"a")
    reader = GroupLog(engine)
    assert len(reader.read(0)) == 1
    log = engine._log
    log.rows.clear()
    log.tagged.clear()
    log.keys["tail"] = bytes(24)
    other = Writer(GroupLog(engine))
    other.append(b"other")
    again = {"configuration": other.configuration, "expected_tail": 1, "append_id": append_id()}
    with pytest.raises(CorruptLog, match="not the one"):
        reader.append([NewLogEntry(b"b")], **again)
    other.append(b"more")
    with pytest.raises(CorruptLog):
        reader.read(1)
    with pytest.raises(LeadershipOver):
        writer.append(b"b")


@pytest.mark.parametrize("tag", ["x" * 256, "two\nlines", "#7", "#" + "a" * 64])
def test_tags_that_no_engine_takes_come_back(writer, tag):
    """Too long, of several lines, or like those that stand for them (DESIGN §7)."""
    writer.append(b"a", tags=(tag, "t"))
    writer.append(b"b", tags=("t",))
    assert writer.engine.read(0, tag=tag) == [LogEntry(1, b"a", (tag, "t"))]
    assert [entry.tags for entry in writer.engine.read(0, tag="t")] == [(tag, "t"), ("t",)]


# Losses.


def _told_to_operators(url: str, *, stopped: bool) -> None:
    """``recover`` and ``verify`` say what ``serve`` does (DESIGN §7)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        recovered = main(["recover", url])
    assert (recovered, "accept-loss" in err.getvalue()) == (int(stopped), stopped)
    assert not (stopped and out.getvalue())
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["log", "verify", url]) == 0
    told = json.loads(out.getvalue())["stopped"]
    assert told is None or "accept-loss" in told
    assert (told is not None) == stopped


def _accepted(url: str) -> None:
    """Refused until an operator accepts the loss; then it goes on under higher numbers."""
    with pytest.raises(CorruptLog, match="accept-loss"):
        open_engine(url)
    # A tool looks at it all the same.
    open_engine(url, read_only=True).close()
    _told_to_operators(url, stopped=True)
    assert accept_loss(url, "alice", "the disk burnt")
    _told_to_operators(url, stopped=False)
    assert accept_loss(url, "alice", "again") == ""
    with contextlib.closing(open_engine(url)) as engine:
        told = json.loads(engine.metadata("curp-log-loss"))
        assert (told["who"], told["why"]) == ("alice", "the disk burnt")
        # The lost leader's lease does not hold anybody up.
        assert engine.take_leadership("two", "b:1", term_s=TERM_S) > 1 << 32


def test_a_file_that_lacks_commits(tmp_path):
    """An older copy lacks what was acknowledged, entries or not: it is refused (DESIGN §6, §7)."""
    log = SqliteLog(tmp_path)
    writer = Writer(log.open())
    writer.append(b"a")
    log.close()
    log.copy_to(tmp_path / "older", "")
    writer.engine = log.open()
    writer.append(b"b")
    writer.engine.renew_leadership(writer.configuration, term_s=TERM_S)
    log.close()
    log.copy_back(tmp_path / "older")
    with pytest.raises(CorruptLog, match="lacks 2 commits"):
        log.open()
    _accepted(log.url)


def test_a_database_that_may_have_lost_entries(shared_postgres, group):
    """It stopped for everyone (DESIGN §7)."""
    url = shared_postgres.url(group=group)
    with contextlib.closing(opened_new(url)) as engine:
        Writer(engine).append(b"a")
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute("UPDATE curp.log SET stopped = 'why' WHERE name = %s", (group,))
    _accepted(url)


def test_a_cluster_that_was_restored(shared_etcd, group):
    """It has another number than the one that the log was made in (DESIGN §7)."""
    url = shared_etcd.url(group=group)
    with contextlib.closing(opened_new(url)) as engine:
        Writer(engine).append(b"a")
        log = engine._engine._log
        key = log.keys.id
        asked = log.client.call(TXN, pb.TxnRequest(success=[get(key)]), again=True)
        told = json.loads(asked.responses[0].range.kvs[0].value)
        value = json.dumps({**told, "cluster": told["cluster"] + 1}).encode()
        log.client.call(TXN, pb.TxnRequest(success=[put(key, value)]), again=True)
    _accepted(url)


def test_a_log_whose_schema_is_dropped_is_created_anew(own_postgres, group):
    """It is not opened, and an operator can create another one in its place (DESIGN §7)."""
    url = own_postgres.url(group=group, schema="lost")
    create_log(url)
    with own_postgres.connect(autocommit=True) as connection:
        connection.execute("DROP SCHEMA lost CASCADE")
    with pytest.raises(NoSuchLog):
        open_engine(url)
    create_log(url)
    with contextlib.closing(open_engine(url)) as engine:
        assert Writer(engine).append(b"a") == 1


def test_a_role_that_makes_no_schemas(own_postgres, group):
    """It makes a log and serves from it with the documented rights (DESIGN §7)."""
    with own_postgres.connect(autocommit=True) as connection:
        connection.execute(script("granted"))
        for statement in (
            "CREATE ROLE bank LOGIN",
            "GRANT USAGE ON SCHEMA granted TO bank",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted TO bank",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA granted TO bank",
        ):
            connection.execute(statement)
    url = own_postgres.url(group=group, schema="granted").replace("rifl@", "bank@")
    create_log(url)
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
        writer.snapshot(1, b"s")
        engine.trim(1, configuration=writer.configuration)
        assert engine.read(1, tag="t") == [LogEntry(2, b"b", ("t",))]


def test_a_lost_request_and_a_lost_reply():
    """Only before the moment nothing happened; the same append id settles which (DESIGN §7)."""
    fault = Armed("append")
    writer = Writer(LogStore(FakeClock()).engine(fault))
    name = append_id()
    for moment, tail in ((Moment.BEFORE, 0), (Moment.AFTER, 1)):
        fault.moment = moment
        with pytest.raises(LogUnavailable):
            writer.append(b"a", append_id=name)
        assert writer.engine.tail() == tail
    assert writer.append(b"a", append_id=name) == 1


def test_a_lost_reply_of_a_take_over_is_taken_again():
    """A replica whose number got lost takes the next one (DESIGN §7)."""
    fault = Armed("commit", Moment.AFTER)
    engine = LogStore(FakeClock()).engine(fault)
    with pytest.raises(LogUnavailable):
        engine.take_leadership("one", "a:1", term_s=TERM_S)
    assert engine.take_leadership("one", "a:1", term_s=TERM_S) == 2


def test_a_store_that_forgets():
    """Writer and readers notice that the tail went back (DESIGN §7)."""
    log = LogStore(FakeClock())
    writer = Writer(log.engine())
    writer.append(b"a", b"b", b"c")
    log.forget(1)
    with pytest.raises(TailMismatch) as caught:
        writer.append(b"d")
    assert caught.value.tail == 1
    with pytest.raises(CorruptLog):
        log.engine().read(3)


def test_what_was_appended_does_not_change_with_the_callers_buffer():
    """The log keeps bytes of its own (DESIGN §7)."""
    writer = Writer(LogStore(FakeClock()).engine())
    body = bytearray(b"a")
    writer.engine.append(
        [NewLogEntry(body)], configuration=1, expected_tail=0, append_id=append_id()
    )
    body[0] = 0
    assert writer.engine.read(0)[0].body == b"a"
