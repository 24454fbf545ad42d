"""``curp log copy``: a stopped group's log at another engine, or where it was (DESIGN §7)."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import signal

import pytest

from curp._cli.command import main
from curp.log import _copying as copying
from curp.log import create_log, open_engine
from curp.log._addresses import parts_of, shown_whole
from curp.log._copying import copy_log
from curp.log._creation import log_id
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LeaseHeld,
    LogExists,
    LogMoved,
    LogUnavailable,
    NoSuchLog,
    UnfinishedCopy,
)
from curp.log._verification import verify
from tests.curp.log.conformance import Writer

ENGINES = ("sqlite", "redis", "postgres", "etcd")


@pytest.fixture
def url(request, tmp_path, group):
    """Say where the log of one group is in each engine."""

    def of(kind):
        if kind.startswith("sqlite"):
            return f"sqlite:///{tmp_path}/{kind}.db?group={group}"
        return request.getfixturevalue(f"shared_{kind}").url(group=group)

    return of


def filled(url, *, ended=True):
    """A log with a little of everything; what it holds."""
    create_log(url)
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        # More than a piece, with all kinds of bytes and tags.
        writer.append(*(b"%d" % n for n in range(600)), tags=("t",), metadata={"k": b"v\x00"})
        writer.append(b"", bytes(range(256)), tags=("ü", "t"))
        writer.append(*(b"x" * 50_000 for _ in range(4)), tags=())
        writer.snapshot(10, b"one", b"", b"two" * 1000)
        engine.trim(7, configuration=1)
        if ended:
            engine.end_leadership(1)
        return held(engine)


def held(engine):
    """Everything that a log holds but for its number."""
    snapshot = engine.load_snapshot()
    return (
        engine.first(),
        list(_read(engine, engine.first() - 1)),
        list(_read(engine, engine.first() - 1, tag="t")),
        engine.all_metadata(),
        (snapshot.lsn, list(snapshot.chunks)),
    )


def _read(engine, after, **more):
    while found := engine.read(after, **more):
        yield from found
        after = found[-1].lsn


# Each engine is read and written once, and they are moved around.
@pytest.mark.parametrize(
    ("source", "target"), [*zip(ENGINES, (*ENGINES[1:], "sqlite"), strict=True)]
)
def test_a_log_is_moved_whole(url, source, target):
    """Entries, tags, metadata, snapshot and id, and the number only grows (DESIGN §7)."""
    before = filled(url(source))
    copied = copy_log(url(source), url(target))
    with contextlib.closing(open_engine(url(target))) as engine:
        assert held(engine) == before
        assert log_id(engine) == copied.log
        assert verify(engine).tail == copied.tail == 606
        leadership = engine.leadership()
        assert leadership.expires_in_s <= 0
        assert leadership.configuration == copied.configuration > 2
        assert Writer(engine).append(b"next") == 607
    with pytest.raises(LogMoved, match=target.replace("postgres", "postgresql")) as moved:
        open_engine(url(source))
    assert f"group={parts_of(url(target))[1]}" in str(moved.value)
    # What is there can still be looked at.
    with contextlib.closing(open_engine(url(source), read_only=True)) as engine:
        assert engine.tail() == 606


def test_a_log_that_is_led_is_not_moved(url):
    """Nor is anything made; its leader goes on (DESIGN §7)."""
    filled(url("sqlite"), ended=False)
    with pytest.raises(LeaseHeld):
        copy_log(url("sqlite"), url("sqlite2"))
    with pytest.raises(NoSuchLog):
        open_engine(url("sqlite2"))
    with contextlib.closing(open_engine(url("sqlite"))) as engine:
        engine.renew_leadership(1, term_s=1)


def test_nothing_is_copied_over_a_log(url):
    """The target has to be new; the source is served from as before (DESIGN §7)."""
    filled(url("sqlite"))
    create_log(url("sqlite2"))
    with pytest.raises(LogExists):
        copy_log(url("sqlite"), url("sqlite2"))
    for each in ("sqlite", "sqlite2"):
        with contextlib.closing(open_engine(url(each))) as engine:
            assert Writer(engine).configuration


def test_another_groups_name_is_refused(url):
    """Its witnesses know the group by its name and its log's id (DESIGN §7)."""
    filled(url("sqlite"))
    with pytest.raises(InvalidRequest, match="same group"):
        copy_log(url("sqlite"), url("sqlite2") + "x")


@pytest.mark.parametrize("step", ["append", "save_snapshot", "put_metadata"])
def test_a_copy_that_breaks_off_leaves_one_log_at_most(url, monkeypatch, step):
    """The source is as it was, and what is at the target cannot be opened (DESIGN §7)."""
    before = filled(url("sqlite"))
    opened = copying.open_new

    def breaking(*arguments):
        engine = opened(*arguments)
        passed = itertools.count(1)

        def fail(*given, **more):
            if next(passed) == 1:
                raise LogUnavailable("the power went")
            return real(*given, **more)

        real = getattr(engine, step)
        monkeypatch.setattr(engine, step, fail)
        return engine

    monkeypatch.setattr(copying, "open_new", breaking)
    with pytest.raises(LogUnavailable, match="power"):
        copy_log(url("sqlite"), url("sqlite2"))
    with pytest.raises(UnfinishedCopy):
        open_engine(url("sqlite2"))
    monkeypatch.undo()
    if step != "put_metadata":
        with pytest.raises(UnfinishedCopy, match="remove it, and copy again"):
            copy_log(url("sqlite"), url("sqlite2"))
        with contextlib.closing(open_engine(url("sqlite"))) as engine:
            assert held(engine) == before
        return
    # It was compared, and the source gave it up: the same copy finishes.
    with pytest.raises(LogMoved):
        open_engine(url("sqlite"))
    with pytest.raises(LogMoved):
        copy_log(url("sqlite"), url("sqlite3"))
    assert copy_log(url("sqlite"), url("sqlite2")).tail == 606
    with contextlib.closing(open_engine(url("sqlite2"))) as engine:
        assert held(engine)[1] == before[1]


def test_a_copy_that_differs_is_not_opened(url, monkeypatch):
    """It is read back, and an engine that kept something else is found out (DESIGN §7)."""
    filled(url("sqlite"))
    opened = copying.open_new

    def lying(*arguments):
        engine = opened(*arguments)
        real = engine.read

        def read(*given, **more):
            found = real(*given, **more)
            return [each._replace(body=b"!") if each.lsn == 300 else each for each in found]

        monkeypatch.setattr(engine, "read", read)
        return engine

    monkeypatch.setattr(copying, "open_new", lying)
    with pytest.raises(CorruptLog, match="entry 300"):
        copy_log(url("sqlite"), url("sqlite2"))
    with pytest.raises(UnfinishedCopy):
        open_engine(url("sqlite2"))
    open_engine(url("sqlite")).close()


def test_the_command_moves_and_says_so(url, capsys):
    """One JSON object, and 0; asked again it is 1 and one line (DESIGN §7)."""
    filled(url("sqlite"))
    assert main(["log", "copy", url("sqlite"), url("sqlite2")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["first"], told["tail"], told["entries"], told["snapshot_lsn"]) == (8, 606, 599, 10)
    assert main(["log", "copy", url("sqlite"), url("sqlite2")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_copy_and_its_lease(url, monkeypatch, capsys, number):
    """One line, the old log is led at once, and nobody takes the rest for a log (DESIGN §7)."""
    before = filled(url("sqlite"))
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    opened = copying.open_new

    def ending(*arguments):
        engine = opened(*arguments)
        append = engine.append

        def end(*given, **more):
            assert signal.getsignal(number) is not signal.SIG_DFL
            # Where whatever a handler raises is lost.
            gc.callbacks.append(lambda *_: signal.raise_signal(number))
            gc.collect()
            gc.callbacks.pop()
            return append(*given, **more)

        monkeypatch.setattr(engine, "append", end)
        return engine

    monkeypatch.setattr(copying, "open_new", ending)
    assert main(["log", "copy", url("sqlite"), url("sqlite2")]) == 128 + number
    said = capsys.readouterr().err
    assert said.startswith(f"curp: {number.name}: the copy was not finished")
    assert said.count("\n") == 1
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    with contextlib.closing(open_engine(url("sqlite"))) as engine:
        assert held(engine) == before
        engine.take_leadership("next", "a:1", term_s=1)
        engine.end_leadership(engine.leadership().configuration)
    for command in (
        ["log", "verify", url("sqlite2")],
        ["log", "dump", url("sqlite2")],
        ["recover", url("sqlite2")],
        ["poison", "list", url("sqlite2")],
        ["log", "copy", url("sqlite"), url("sqlite2")],
    ):
        assert main(command) == 1
        told = capsys.readouterr()
        assert not told.out
        assert "the copy of another log, and was not finished" in told.err


def test_a_moved_log_says_so_to_operators(url, capsys):
    """``recover`` as ``serve`` does, with where it went; ``verify`` reads it (DESIGN §7)."""
    filled(url("sqlite"))
    copy_log(url("sqlite"), url("sqlite2"))
    assert main(["recover", url("sqlite")]) == 1
    told = capsys.readouterr()
    assert not told.out
    assert url("sqlite2") in told.err
    assert main(["log", "verify", url("sqlite")]) == 0
    assert url("sqlite2") in json.loads(capsys.readouterr().out)["stopped"]
    assert main(["log", "verify", url("sqlite2")]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] is None
    assert main(["recover", url("sqlite2")]) == 0


def test_where_a_log_went_is_told_without_secrets():
    """All that another replica needs but for credentials (DESIGN §9)."""
    told = shown_whole("postgresql://u:pw1@h/d?password=pw2&schema=s&group=a%20b&sslmode=require")
    assert told == "postgresql://h/d?group=a+b&schema=s"
