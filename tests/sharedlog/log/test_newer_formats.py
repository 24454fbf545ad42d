"""Entries of a newer release, told as that by every reader, and never skipped (§12).

And what this release does not know of a message goes along where it copies one.
"""

import asyncio
import json
import secrets
import sqlite3
from contextlib import closing
from datetime import timedelta

import pyarrow.parquet
import pytest

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._core.commit import Commit, NewEntry, Put
from sharedlog._core.entry import EntryKind, body_of
from sharedlog._core.envelope import About, pack
from sharedlog._core.publishing import Placed
from sharedlog.v1 import sharedlog_pb2 as pb
from tests.sharedlog.served import served

TAGS = ("s/0", "s/*")


@pytest.fixture
def url():
    return f"memory:{secrets.token_hex(8)}"


@pytest.fixture
def log(url):
    """A log with one message that is read, before what is tried."""
    with sharedlog.create(url) as made:
        made.stream("s", 1, timedelta(0))
        made.publish("s", "known")
        yield made


def put(log, *bodies, tags=TAGS, puts=()):
    """Have these entries in the log."""
    entries = tuple(NewEntry(body, tags) for body in bodies)
    log._engine.commit(Commit(entries=entries, puts=puts))


def newer_entry(kind=pb.COMMITTED):
    """An entry of a version that nobody knows here, as a newer release may write it."""
    return pb.Entry(version=2, kind=kind, count=1, producer=1, seq=9).SerializeToString()


def newer_envelope():
    """An entry of ours whose message is not."""
    message = pb.Envelope(version=9, body=b"?").SerializeToString()
    return body_of(EntryKind.COMMITTED, 1, 9, message=message)


def polled(following):
    """Return what is read before a newer release is told of."""
    found = []
    try:
        while True:
            found += following.poll(5)
    except sharedlog.NewerFormat:
        return found


NEWER = {"an entry": newer_entry, "an envelope": newer_envelope}


@pytest.mark.parametrize("make", NEWER.values(), ids=list(NEWER))
@pytest.mark.parametrize("through", ["the log", "a server"])
def test_followers_stop_at_it(log, make, through):
    """The same again each time, with a hold that does not pass it (L1, L6)."""
    put(log, make())
    log.publish("s", "behind it")
    with served(log) as server:
        url = f"grpc://{server.address}" if through == "a server" else log._url
        with sharedlog.open(url) as opened:
            for committed, name in ((True, None), (True, "me"), (False, None)):
                with opened.follow("s", committed=committed, name=name) as following:
                    assert {each.text for each in polled(following)} <= {"known"}
                    with pytest.raises(sharedlog.NewerFormat):
                        following.poll(5)
            with pytest.raises(sharedlog.NewerFormat):
                opened.read("s", 0)
            assert max(each.lsn for each in opened.holds("me")) <= 1

    async def follows():
        async with await sharedlog.aio.open(log._url) as opened, opened.follow("s") as following:
            async for _ in following:
                pass

    with pytest.raises(sharedlog.NewerFormat):
        asyncio.run(follows())


@pytest.mark.parametrize("make", NEWER.values(), ids=list(NEWER))
def test_commands_tell_it_and_leave_no_file(log, url, make, tmp_path, capsys):
    """An export is whole or not there; verifying reads on, and says where (§12)."""
    put(log, make())
    log.publish("s", "behind it")
    out = tmp_path / "s.parquet"
    assert main(["export", url, "s", "--out", str(out)]) == ExitCode.UNAVAILABLE
    assert "newer release" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["verify", url, "--json"]) == ExitCode.DAMAGED
    report = json.loads(capsys.readouterr().out)
    assert report["through"] == 3
    assert [each for each in report["problems"] if "newer release" in each]


def test_nothing_is_trimmed_that_a_newer_marker_may_need(log):
    """Where its spans begin is not known here: the trimmer stops, and removes nothing (L6)."""
    log.publish("s", "held")
    with log.follow("s", name="me") as following:
        following.done(following.poll(5)[-1])
    put(log, newer_entry(pb.MARKER), tags=("s/0", "s/*", "*markers"))
    log.publish("s", "behind it")
    with pytest.raises(sharedlog.NewerFormat):
        log.trim()
    assert log._engine.first() == 1


def test_a_hold_and_a_stream_of_a_newer_release_are_told(log, url):
    """Neither is taken for damage, nor made anew (L6)."""
    with log.follow("s", name="me") as following:
        following.done(following.poll(5)[0])
    ((key, value),) = log._engine.scan("hold/").items()
    put(log, puts=(Put(key, b"\x02" + value[1:]), Put("stream/t", b"\x08\x02")))
    for ask in (
        lambda: log.follow("s", name="me"),
        log.holds,
        log.trim,
        lambda: log.publish("t", "x"),
        lambda: log.stream("t"),
        log.streams,
        lambda: log.drop_hold("me"),
    ):
        with pytest.raises(sharedlog.NewerFormat):
            ask()
    assert main(["holds", url]) == ExitCode.UNAVAILABLE


def test_appends_go_on_beside_it(log):
    """Who only writes needs nothing of what is there: nor a sweeper, which ends a producer (C2)."""
    put(log, newer_entry())
    log.publish("s", "beside")
    transaction = log.producer().transaction().__enter__()
    transaction.publish("s", "pending")
    transaction.pend()
    with closing(log.sweeper(timedelta(seconds=10))) as sweeper:
        assert sweeper.round() == []
    with pytest.raises(sharedlog.NewerFormat):
        log.read("s", 0)


def test_in_an_applications_transaction_a_newer_stream_is_told(tmp_path):
    """Before anything is written there (§12)."""
    file = tmp_path / "log.db"
    with sharedlog.create(f"sqlite:///{file}") as log, closing(sqlite3.connect(file)) as connection:
        put(log, puts=(Put("stream/t", b"\x08\x02"),))
        connection.execute("CREATE TABLE t (a)")
        with pytest.raises(sharedlog.NewerFormat):
            log.append_in(connection, "t", "x")
        connection.rollback()
        assert log._engine.tail() == 0


UNKNOWN = b"\xfa\x07\x03new"  # Field 127, of a release that is to come.


def odd_envelope():
    """What a message may say, and what nobody here knows of it."""
    about = About(
        method="/shop.v1.Shop/Buy", trace_parent=f"00-{1:032x}-{1:016x}-01", trace_state="a=b"
    )
    return pack(b"x", b"k", about, 5) + UNKNOWN


def test_what_is_not_known_of_a_message_is_kept(log, url, tmp_path):
    """Read, pickled, served, sent on over gRPC, exported: its bytes are what was written (§12)."""
    envelope = odd_envelope()
    placed = Placed(envelope, "s/0", len(envelope))
    with served(log) as server, sharedlog.open(f"grpc://{server.address}") as remote:
        remote._publisher.publish(placed)
        log._publisher.publish(placed)
        for opened in (log, remote):
            _, *found = opened.read("s", 0)
            assert [each._data for each in found] == [envelope] * 2
            assert {each.method for each in found} == {"/shop.v1.Shop/Buy"}
    out = tmp_path / "s.parquet"
    assert main(["export", url, "s", "--out", str(out)]) == ExitCode.DONE
    table = pyarrow.parquet.read_table(out)
    assert table["method"].to_pylist() == ["", *["/shop.v1.Shop/Buy"] * 2]
    assert table["trace_state"].to_pylist() == ["", *["a=b"] * 2]


def test_an_outbox_keeps_the_method_of_a_message(log, tmp_path):
    """Its rows are envelopes as they will be appended, byte for byte (§12)."""
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection:
        sharedlog.create_outbox(connection, log)
        box = sharedlog.outbox(connection, log)
        box.publish("s", "x", about=About(method="/shop.v1.Shop/Buy"))
        connection.commit()
        (kept,) = connection.execute("SELECT envelope FROM sharedlog_outbox_message").fetchone()
    with closing(sharedlog.relay(f"sqlite:///{file}", log)) as relay:
        relay.round()
    found = log.read("s", 0)[-1]
    assert (found.method, found._data) == ("/shop.v1.Shop/Buy", kept)
