"""The ``sharedlog`` command: what it prints, what it does, and what it ends with."""

import io
import json
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet
import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._cli.given import after, duration
from sharedlog._core import envelope as envelopes
from sharedlog._core.commit import Commit, NewEntry, Put
from sharedlog._core.entry import EntryKind, ProducerDecision, body_of
from sharedlog._core.errors import LogFull
from sharedlog._core.holds import BEGINNING, take
from sharedlog._core.names import NameKind, own_name
from sharedlog._core.producers import NewMessage, append, grant
from sharedlog._core.query.closing import BatchSummary, close
from sharedlog._core.query.joining import join
from sharedlog._core.query.state import Ticket, draw_plan
from sharedlog._core.query.tasks import grant_task, pend_task
from sharedlog._core.spans import decide, pend
from sharedlog._core.stream_schema import StreamSchema, declare_schema, find_schema
from sharedlog._engines.checksums import kept
from tests.sharedlog.logs import TOKEN


@pytest.fixture
def run(capsys):
    """A command's exit code, what it printed, and what it said of errors."""

    def run_(*arguments):
        code = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_


@pytest.fixture
def told(run):
    """What a command that succeeds prints, as JSON; of several lines each."""

    def told_(command, *arguments):
        code, out, err = run(command, *arguments, "--json")
        assert (code, err) == (ExitCode.DONE, "")
        found = [json.loads(line) for line in out.splitlines()]
        return found[0] if len(found) == 1 else found

    return told_


@pytest.fixture
def filled(log):
    log.stream("s", 2, timedelta(0))
    for number in range(20):
        log.publish("s", f"{number}", key=f"k{number}")
    return log


def values(found):
    return [each["value"] for each in found]


def test_a_log_is_made_and_used_from_a_shell(url, run, told):
    """Create, streams, publish and read; what is there already is refused."""
    incarnation = told("create", url)["incarnation"]
    assert run("create", url)[0] == ExitCode.USAGE
    assert told("streams", url, "--create", "s", "--substreams", 2, "--retention", "2h") == [
        {"name": "s", "substreams": 2, "retention_s": 7200.0}
    ]
    assert run("streams", url, "--create", "s", "--substreams", 3)[0] == ExitCode.USAGE
    position = told("publish", url, "s", "hello", "--key", "k", "--header", "h=v")["position"]
    assert position.endswith(incarnation)
    found = told("read", url, "s")
    assert (found["value"], found["key"], found["headers"]) == ("hello", "k", {"h": "v"})
    assert found["position"] == position
    code, out, _ = run("read", url, "s")
    assert (code, out.split()[1:]) == (0, [position, "k", "hello"])
    assert "hello" in run("read", url, "s", "--color", "always")[1]
    assert "\x1b[" in run("read", url, "s", "--color", "always")[1]
    assert run("read", url, "s", "--after", position)[1] == ""


def test_lines_are_published_from_standard_input(filled, url, told, monkeypatch):
    """Each line is a message."""
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert told("publish", url, "s") == {"published": 2}
    assert values(told("read", url, "s", "--limit", 30))[20:] == ["one", "two"]


def test_the_last_messages_are_printed(filled, url, told):
    """Few of a long log are found without reading it all."""
    assert values(told("tail", url, "s", "-n", 3)) == ["17", "18", "19"]
    assert len(told("tail", url, "s", "-n", 50)) == 20
    filled.stream("t", 1)
    with filled.producer().transaction() as transaction:
        for _ in range(600):
            transaction.publish("t", b"other")
    assert values(told("tail", url, "s", "-n", 3)) == ["17", "18", "19"]


def test_a_tail_follows_until_the_log_is_closed(filled, url, capsys, monkeypatch):
    """What is appended later is printed, too."""
    begun, seen = threading.Event(), threading.Event()
    lines = []

    class Out(io.StringIO):
        def write(self, text):
            lines.append(text)
            begun.set()
            if "new" in text:
                seen.set()
            return len(text)

    opened = []

    def open_log(url, **how):
        opened.append(sharedlog.open(url, **how))
        return opened[-1]

    monkeypatch.setattr("sharedlog._cli.command.open_log", open_log)
    monkeypatch.setattr("sys.stdout", Out())
    codes = []
    arguments = ["tail", url, "s", "-n", "1", "--follow", "--json"]
    thread = threading.Thread(target=lambda: codes.append(main(arguments)))
    thread.start()
    try:
        assert begun.wait(30)
        filled.publish("s", "new")
        assert seen.wait(30)
    finally:
        opened[0].close()
        thread.join(30)
    assert codes == [ExitCode.UNAVAILABLE]
    assert values(map(json.loads, "".join(lines).splitlines())) == ["19", "new"]


def test_what_is_not_committed_is_shown_marked(log, url, run, told):
    """And who has it pending; it may be retired (C2)."""
    log.stream("s", 1)
    mine = log._run(grant(TOKEN))
    envelope = envelopes.pack(b"\xff", None, None, 0)
    log._run(pend(mine, 1, [NewMessage(envelope, ("s/0",))], []))
    found = told("read", url, "s", "--uncommitted")
    assert (found["state"], found["value_base64"]) == ("pending", "/w==")
    assert told("producers", url) == [
        {"id": mine.id, "window": 1, "seq": 1, "retired": False, "pending": {"s/0": 1}}
    ]
    assert mine.token.hex() not in str(told("producers", url, "--all"))
    assert run("retire", url, mine.id)[0] == ExitCode.USAGE
    assert told("retire", url, mine.id, "--yes") == {"producer": mine.id, "highest_seq": 1}
    assert told("producers", url) == []
    assert told("producers", url, "--all")[0]["retired"] is True
    assert told("read", url, "s", "--uncommitted")["state"] == "rolled back"
    assert run("retire", url, 99, "--yes")[0] == ExitCode.NOT_FOUND


def test_holds_are_listed_dropped_and_forgotten(filled, url, run, told):
    """Dropping and forgetting are said twice (L6)."""
    with filled.follow("s", name="me") as following:
        following.done(following.poll()[9])
    assert {(each["name"], each["substream"], each["state"]) for each in told("holds", url)} == {
        ("me", "s/0", "held"),
        ("me", "s/1", "held"),
    }
    assert told("trim", url)["kept_by"].startswith("the hold of 'me'")
    assert run("holds", url, "--drop", "me")[0] == ExitCode.USAGE
    assert len(told("holds", url, "--drop", "me", "--yes")) == 2
    assert {each["state"] for each in told("holds", url)} == {"dropped"}
    assert told("trim", url)["whole_from"] == 20
    assert run("holds", url, "--drop", "you", "--yes")[0] == ExitCode.NOT_FOUND
    assert len(told("holds", url, "--forget", "me", "--yes")) == 2
    assert told("holds", url) == []
    assert run("read", url, "s", "--after", "2000-01-01")[0] == ExitCode.GONE
    assert "overdue" not in run("trim", url)[1]


def test_a_trim_says_what_a_full_store_keeps(filled, url, run, told, monkeypatch):
    """It is declared; what is not removed yet is of the next trim (L8)."""

    def full(*_):
        raise LogFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(type(filled._engine), "remove", full)
        found = told("trim", url)
        assert (found["removed"], found["remaining"], found["whole_from"]) == (0, 19, 20)
        assert ["remaining", "19"] in [line.split() for line in run("trim", url)[1].splitlines()]
    found = told("trim", url)
    assert (found["removed"], found["remaining"]) == (19, 0)


def test_a_log_is_exported_to_parquet(filled, url, tmp_path, told, run):
    """All its committed messages; the file appears when it is whole."""
    out = tmp_path / "s.parquet"
    assert told("export", url, "s", "--out", out) == {"messages_exported": 20}
    table = pyarrow.parquet.read_table(out)
    assert table["value"].to_pylist() == [str(number).encode() for number in range(20)]
    assert table["key"].to_pylist()[3] == b"k3"
    assert table["lsn"].to_pylist() == list(range(1, 21))
    assert told("export", url, "s", "--substream", 0, "--out", out)["messages_exported"] < 20
    assert run("export", url, "none", "--out", out)[0] == ExitCode.NOT_FOUND
    assert list(tmp_path.glob("*.part")) == []


def test_a_whole_log_is_verified(filled, url, told):
    """With transactions, what is pending, holds, and a trimmed beginning (L1, C1)."""
    mine, other = filled._run(grant(TOKEN)), filled._run(grant(TOKEN))
    envelope = envelopes.pack(b"x", None, None, 0)
    begins = filled._run(pend(mine, 1, [NewMessage(envelope, ("s/0",))] * 2, [])).begins
    filled._run(pend(other, 1, [NewMessage(envelope, ("s/1",))], []))
    filled._run(decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True))
    with filled.follow("s", name="me") as following:
        following.done(following.poll()[9])
    report = told("verify", url)
    assert report["problems"] == []
    assert (report["first"], report["through"], report["messages"]) == (1, 24, 23)
    assert (report["markers"], report["pending"], report["holds"]) == (1, 1, 2)
    filled.trim()
    report = told("verify", url)
    assert report["problems"] == []
    assert report["first"] > 1


def test_names_may_leave_seqs_out(log, url, told):
    """Several names in one log, each with numbers of its own, are no damage (§12, L3)."""
    log.stream("s")
    for follows, seq in ((0, 5), (5, 17)):
        for name in ("billing", "shipping"):
            log.producer(name).publish("s", "x", seq=seq, follows=follows)
    assert told("verify", url)["problems"] == []


@pytest.mark.parametrize(
    ("entries", "puts", "problem"),
    [
        ([NewEntry(b"\xff\xff", ("s/0",))], [], "no entry"),
        (
            [NewEntry(body_of(EntryKind.COMMITTED, 1, 1, message=b"\xff\xff"), ("s/0",))],
            [],
            "envelope",
        ),
        ([NewEntry(body_of(EntryKind.PENDING, 1, 1, index=1, count=2), ())] * 2, [], "append"),
        ([NewEntry(body_of(EntryKind.ROLLBACK, 7, n), ()) for n in (5, 3)], [], "behind 5"),
        (
            [
                NewEntry(
                    body_of(EntryKind.MARKER, 9, 2, decisions=[ProducerDecision(9, 1, {"s/0": 3})]),
                    ("s/*", "s/0", "*markers"),
                )
            ],
            [],
            "began",
        ),
        ([], [Put("span/4/s/0", (9).to_bytes(8, "big"))], "pending"),
    ],
)
def test_damage_is_told(filled, url, run, entries, puts, problem):
    """By exit code and in words; everything else is read on."""
    filled._engine.commit(Commit(entries=tuple(entries), puts=tuple(puts)))
    code, out, _ = run("verify", url, "--json")
    report = json.loads(out)
    assert code == ExitCode.DAMAGED
    assert any(problem in each for each in report["problems"])
    code, out, _ = run("verify", url)
    assert code == ExitCode.DAMAGED
    assert problem in out


def test_a_restored_log_is_another_one(filled, url, run, told):
    """No position, hold or producer of before is taken for its own (§12)."""
    mine = filled._run(grant(TOKEN))
    envelope = envelopes.pack(b"x", None, None, 0)
    filled._run(pend(mine, 1, [NewMessage(envelope, ("s/0",))], []))
    with filled.follow("s", name="me") as following:
        found = following.poll()
        following.done(found[9])
    # It has done messages that the hold in the backup does not have.
    filled.follow("s", name="begun").close()
    before = filled.incarnation
    filled.close()
    assert run("restored", url)[0] == ExitCode.USAGE
    now = told("restored", url, "--yes")
    assert now["incarnation"] != before
    assert now["producers"] >= 2
    with sharedlog.open(url) as log:
        assert log.incarnation == now["incarnation"]
        for arguments in ({"after": found[3]}, {"name": "me"}, {"name": "begun"}):
            with pytest.raises(sharedlog.LogForked):
                log.follow("s", **arguments)
        with pytest.raises(sharedlog.ProducerRetired):
            log._run(append(mine, 2, [NewMessage(envelope, ("s/0", "s/*"))]))
        assert len(log.follow("s").poll()) == 20
    with pytest.raises(sharedlog.LogForked):
        sharedlog.open(url, incarnation=before)


def test_what_cannot_be_done_is_one_line_and_a_code(filled, url, run, tmp_path):
    """For scripts (docs/reference/commands.md)."""
    position = str(filled.follow("s").poll()[0].position)
    for arguments, code in (
        (("read", "memory:none", "s"), ExitCode.NOT_FOUND),
        (("read", url, "none"), ExitCode.NOT_FOUND),
        (("read", "nonsense", "s"), ExitCode.USAGE),
        (("read", url, "s", "--substream", 9), ExitCode.USAGE),
        (("read", url, "s", "--after", position.partition("@")[0] + "@beef"), ExitCode.GONE),
        (("streams", url, "--substreams", 3), ExitCode.USAGE),
    ):
        found, out, err = run(*arguments)
        assert (found, out, err.count("\n")) == (code, "", 1), arguments
    garbage = tmp_path / "garbage.db"
    sqlite3.connect(garbage).close()
    garbage.write_bytes(b"no database at all " * 100)
    assert run("read", f"sqlite:///{garbage}", "s")[0] in (
        ExitCode.DAMAGED,
        ExitCode.NOT_FOUND,
    )
    for arguments in (("read", url), ("trim", url, "--every", "soon"), ("nothing",)):
        with pytest.raises(SystemExit) as ended:
            run(*arguments)
        assert ended.value.code == ExitCode.USAGE


def test_queries_are_listed_abandoned_and_forgotten(log, url, run, told):
    """What each committed last, what it has pending, and how far it has read (§16)."""
    log.stream("s", 1)
    log.publish("s", "x")
    mine = (own_name(NameKind.QUERY, "q"), {"s/0": BEGINNING}, log.incarnation)
    log._run(take(*mine, 1, 1, note="maxRowsPerTrigger=9"))
    ticket = Ticket("q", "id", "run", log._run(draw_plan()), 0)
    task = log._run(grant_task(log._run(join(ticket)), ticket, TOKEN))
    log._run(pend_task(task, 1, [NewMessage(envelopes.pack("y", None, None, 0), ("s/0",))], []))
    (one,) = told("queries", url)
    assert (one["name"], one["state"], one["batch"], one["tasks"]) == ("q", "open", None, 1)
    assert one["lag"] == 2 - one["read"]
    assert (one["reads"], one["limit"], one["writes"]) == ("s", "maxRowsPerTrigger=9", None)
    assert "@query" not in run("queries", url)[1]
    assert run("queries", url, "--abandon", "q")[0] == ExitCode.USAGE
    (one,) = told("queries", url, "--abandon", "q", "--yes")
    assert (one["state"], one["tasks"], one["undone"]) == ("abandoned", 0, 1)
    assert told("queries", url, "--forget", "q", "--yes") == {"name": "q", "batch": -1}
    assert run("queries", url, "--forget", "q", "--yes")[0] == ExitCode.NOT_FOUND
    assert run("queries", url, "--abandon", "q", "--yes")[0] == ExitCode.NOT_FOUND
    writing = Ticket("w", "id", "run", log._run(draw_plan()), 0)
    log._run(join(writing))
    log._run(close(writing, BatchSummary(stream="paid")))
    (one,) = (each for each in told("queries", url) if each["name"] == "w")
    assert (one["reads"], one["writes"], one["batch"]) == (None, "paid", 0)


def test_the_columns_of_a_stream_are_forgotten(log, url, run, told):
    """The next query declares others, where the first ones are no longer wanted (§16)."""
    log._run(declare_schema("orders", StreamSchema("arrow", "", b"columns")))
    forgetting = ("queries", url, "--forget-schema", "orders")
    assert run(*forgetting)[0] == ExitCode.USAGE
    assert told(*forgetting, "--yes") == {"stream": "orders"}
    assert log._run(find_schema("orders")) is None
    assert run(*forgetting, "--yes")[0] == ExitCode.NOT_FOUND


def test_a_named_producer_is_listed_and_forgotten(log, url, run, told):
    """The name begins anew, once that was said twice (L3)."""
    log.stream("s", 1)
    log.producer("relay").publish("s", "x", seq=7, follows=0)
    assert told("producers", url, "--named") == [{"name": "relay", "seq": 7}]
    assert "relay" in run("producers", url, "--named")[1]
    assert run("forget", url, "relay")[0] == ExitCode.USAGE
    assert told("forget", url, "relay", "--yes") == {"name": "relay", "highest_seq": 7}
    assert told("producers", url, "--named") == []
    assert run("forget", url, "relay", "--yes")[0] == ExitCode.NOT_FOUND


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """A module with keys, and one with other ones."""
    monkeypatch.chdir(tmp_path)
    for name, key in (("own_keys", 7), ("other_keys", 9)):
        text = f"def seal(data, at): return bytes(each ^ {key} for each in data)\nunseal = seal\n"
        Path(f"{name}.py").write_text(text)
    yield "own_keys"
    for name in ("own_keys", "other_keys"):
        sys.modules.pop(name, None)


def test_holds_of_before_a_restore_are_shown_as_refused(tmp_path, run, told):
    """Their followers are; what they keep they keep, until they are forgotten (L6)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as log:
        log.stream("s", 2)
        log.publish("s", "a", key="k")
        for name in ("done", "begun"):
            with log.follow("s", (0, 1), name=name) as following:
                if name == "done":
                    following.done(next(following))
    assert {each["state"] for each in told("holds", url)} == {"held"}
    assert run("restored", url, "--yes")[0] == ExitCode.DONE
    assert {(each["name"], each["state"]) for each in told("holds", url)} == {
        ("done", "refused"),
        ("begun", "refused"),
    }
    with sharedlog.open(url) as log, pytest.raises(sharedlog.LogForked):
        log.follow("s", (0, 1), name="done")
    assert "refused" in run("holds", url)[1]


def test_sealed_messages_are_operated_with_and_without_their_key(tmp_path, keys, run, told, capsys):
    """Read, tail, verify and export open them with ``--keys``, and tell where they are without."""
    url, out = f"sqlite:///{tmp_path}/log.db", tmp_path / "s.parquet"
    told("create", url)
    told("streams", url, "--create", "s", "--substreams", 1)
    position = told("publish", url, "s", "the value", "--key", "k", "--keys", keys)["position"]
    for command in ("read", "tail"):
        assert told(command, url, "s", "--keys", keys)["value"] == "the value"
        found = told(command, url, "s")
        assert (found["sealed"], found["position"]) == (True, position)
        # Whoever reads lines of JSON finds the names of any message there.
        opened = told(command, url, "s", "--keys", keys)
        assert found.keys() == opened.keys()
        assert [found[each] for each in ("key", "value", "headers")] == [None] * 3
        assert opened["sealed"] is False
        assert run(command, url, "s")[1].split()[1:] == [position, "sealed"]
    for given, problems in (([], 0), (["--keys", keys], 0), (["--keys", "other_keys"], 1)):
        code, printed, _ = run("verify", url, "--json", *given)
        report = json.loads(printed)
        assert (report["sealed"], len(report["problems"])) == (1, problems)
        assert code == (ExitCode.DAMAGED if problems else ExitCode.DONE)
    for given, value in (([], None), (["--keys", keys], b"the value")):
        assert told("export", url, "s", "--out", out, *given) == {"messages_exported": 1}
        [row] = pyarrow.parquet.read_table(out).to_pylist()
        assert (row["value"], row["position"], row["sealed"]) == (value, position, value is None)
    for nothing in ("no_such_module", "json"):
        with pytest.raises(SystemExit):
            run("read", url, "s", "--keys", nothing)
        assert nothing in capsys.readouterr().err


def test_a_loss_is_accepted_only_where_a_log_has_stopped(tmp_path, run, told):
    """An older copy under a newer note; what goes on is another log (§12)."""
    file = tmp_path / "log.db"
    url = f"sqlite:///{file}"
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        log.publish("s", b"one")
    older = file.read_bytes()
    assert run("accept-loss", url)[0] == ExitCode.USAGE
    code, _, error = run("accept-loss", url, "--yes")
    assert (code, "has not stopped" in error) == (ExitCode.USAGE, True)
    with sharedlog.open(url) as log:
        before = log.incarnation
        log.publish("s", b"two")
    file.write_bytes(older)
    code, _, error = run("read", url, "s")
    assert (code, "sharedlog accept-loss" in error) == (ExitCode.DAMAGED, True)
    found = told("accept-loss", url, "--yes")
    assert "lacks" in found["lost"]
    assert found["incarnation"] != before
    assert values([told("read", url, "s")]) == ["one"]
    assert told("verify", url)["problems"] == []


def test_a_backup_without_its_note_is_declared_restored(tmp_path, run, told):
    """SQLite's own backup is opened by nobody before that (§12)."""
    url, copied = (f"sqlite:///{tmp_path}/{name}.db" for name in ("log", "copy"))
    with (
        sharedlog.create(url) as log,
        closing(sqlite3.connect(tmp_path / "log.db")) as one,
        closing(sqlite3.connect(tmp_path / "copy.db")) as other,
    ):
        log.stream("s", 1)
        log.publish("s", b"one")
        one.backup(other)
    assert run("read", copied, "s")[0] == ExitCode.DAMAGED
    assert told("restored", copied, "--yes")["lost"] == "the note beside it is missing"
    assert values([told("read", copied, "s")]) == ["one"]


def test_only_etcd_is_defragmented(tmp_path, run):
    """Other stores have no such need (docs/how-to/log-operations.md)."""
    assert run("defragment", f"sqlite:///{tmp_path}/log.db")[0] == ExitCode.USAGE


def test_a_signal_ends_a_command_with_a_code_and_leaves_nothing_half_done(
    filled, url, tmp_path, run, monkeypatch
):
    """SIGTERM and SIGINT; an export leaves no part of a file (docs/reference/commands.md)."""
    for number, code in (
        (signal.SIGTERM, ExitCode.TERMINATED),
        (signal.SIGINT, ExitCode.INTERRUPTED),
    ):
        monkeypatch.setattr(
            "sharedlog._cli.messages._row", lambda _, number=number: signal.raise_signal(number)
        )
        assert run("export", url, "s", "--out", tmp_path / "s.parquet")[0] == code
    assert list(tmp_path.glob("s.parquet*")) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_times_are_given_as_people_write_them():
    """Durations with a unit; a time without a zone is the shell's."""
    assert duration("90") == timedelta(seconds=90)
    assert [duration(text).total_seconds() for text in ("15m", "2h", "7d", "1.5s")] == [
        900,
        7200,
        604800,
        1.5,
    ]
    assert after("2026-01-02T03:04:05+00:00").isoformat() == "2026-01-02T03:04:05+00:00"
    assert after("2026-01-02").tzinfo is not None
    assert after("15m").tzinfo is not None


def shorten(url):
    """Take what it has of ``s/0`` out of the index of a log in SQLite."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        assert connection.execute("DELETE FROM sharedlog_tag WHERE tag = 's/0'").rowcount


def test_an_index_of_tags_that_lost_something_is_told(tmp_path, run, told):
    """Reads by it lose messages: the log does not count as whole (§12, L5)."""
    url = f"sqlite:///{tmp_path / 'a.log'}"
    with sharedlog.create(url) as log:
        log.stream("s")
        with log.producer().transaction() as transaction:
            for number in range(300):
                transaction.publish("s", f"{number}")
    assert told("verify", url)["problems"] == []
    shorten(url)
    code, out, _ = run("verify", url, "--json")
    assert code == ExitCode.DAMAGED
    (problem,) = json.loads(out)["problems"]
    assert problem.startswith("the index of 's/0' lacks ")
    assert problem.endswith(" entries, the first is LSN 1")


@pytest.fixture
def damaged(tmp_path):
    """Damage a closed log in SQLite, of a hold, a name and 300 messages, by a statement."""
    made = tmp_path / "a.log"
    url = f"sqlite:///{made}"
    with sharedlog.create(url) as log:
        log.stream("s")
        with log.producer().transaction() as transaction:
            for number in range(300):
                transaction.publish("s", f"{number}")
        log.producer("bob").publish("s", "x", seq=1, follows=0)
        with log.follow("s", name="me") as following:
            following.done(following.poll()[0])
        log.follow("s", name="begun").close()
        log.raise_fence("f")

    def damaged_(statement):
        with closing(sqlite3.connect(made)) as connection, connection:
            connection.create_function("kept", 2, kept)
            assert connection.execute(statement).rowcount
        return url

    return damaged_


def test_verify_goes_on_behind_what_cannot_be_read(damaged, run):
    """Every row that is damaged is told, as JSON where that is asked for (§12)."""
    url = damaged("UPDATE sharedlog_entry SET body = x'00' WHERE lsn IN (5, 100, 290)")
    damaged("UPDATE sharedlog_entry SET body = 'text' WHERE lsn = 200")
    code, out, err = run("verify", url, "--json")
    assert (code, err) == (ExitCode.DAMAGED, "")
    problems = json.loads(out)["problems"]
    told = [each for each in problems if each.startswith("LSN ")]
    assert told == [f"LSN {lsn} is damaged" for lsn in (5, 100, 200, 290)]
    # Nothing else is wrong, but what goes by the index meets them, too.
    assert all("is damaged" in each for each in problems), problems


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE sharedlog_head SET removed = 5", "is gone"),
        ("UPDATE sharedlog_key SET value = 'abc' WHERE key LIKE 'hold/%'", "damaged"),
        ("UPDATE sharedlog_key SET value = value || x'ff' WHERE key LIKE 'hold/%'", "damaged"),
        ("UPDATE sharedlog_key SET value = kept(key, x'01ff') WHERE key LIKE 'hold/%'", "'me'"),
        ("DELETE FROM sharedlog_key WHERE key = 'stream/s'", "stream 's' is gone"),
        (
            "UPDATE sharedlog_key SET value = kept(key, x'08011000') WHERE key = 'stream/s'",
            "stream 's'",
        ),
        (
            "UPDATE sharedlog_key SET value = kept(key, x'08011001') WHERE key = 'stream/s'",
            "1 substreams",
        ),
        ("DELETE FROM sharedlog_key WHERE key = 'producers'", "0 producers were granted"),
        ("UPDATE sharedlog_head SET indexed = 0", "goes on behind LSN 0"),
        ("DELETE FROM sharedlog_key WHERE key = 'producer/1'", "producer 1 is gone"),
        ("DELETE FROM sharedlog_key WHERE key = 'producer/1/seq'", "producer 1 is at seq 0"),
        (
            "UPDATE sharedlog_key SET value = kept(key, CAST(substr(value, 9, 24) || "
            "x'0000000000000fff' AS BLOB)) WHERE key = 'named/bob'",
            "named/bob says LSN 4095",
        ),
        ("DELETE FROM sharedlog_key WHERE key = 'holds'", "count of the holds"),
        (
            "UPDATE sharedlog_key SET value = kept(key, CAST(substr(value, 9, 2) || "
            "x'0000000000ffffff' || substr(value, 19) AS BLOB)) WHERE key LIKE 'hold/begun/%'",
            "the hold of 'begun' on",
        ),
        ("UPDATE sharedlog_tag SET below = x'010203'", "the index of"),
        ("UPDATE sharedlog_tag SET below = x'0100000001000000'", "the index of"),
        ("UPDATE sharedlog_tag SET below = zeroblob(length(below))", "the index of"),
        ("UPDATE sharedlog_tag SET below = 'text'", "the index of"),
        ("UPDATE sharedlog_head SET indexed = indexed + 1000", "head is damaged"),
        (
            "UPDATE sharedlog_key SET value = kept(key, x'ff') WHERE key = 'log/format'",
            "format number",
        ),
        ("UPDATE sharedlog_key SET value = x'7a7a' WHERE key = 'log/incarnation'", "incarnation"),
    ],
)
def test_damage_beside_the_rows_is_told(damaged, run, statement, problem):
    """With exit code 6, and no error of Python's (§12)."""
    code, out, err = run("verify", damaged(statement), "--json")
    assert (code, err) == (ExitCode.DAMAGED, "")
    assert [each for each in json.loads(out)["problems"] if problem in each], out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sharedlog_tag SET below = x'010203'",
        "UPDATE sharedlog_tag SET below = 'text'",
        "UPDATE sharedlog_head SET indexed = 0",
        "UPDATE sharedlog_tag SET below = zeroblob(length(below))",
    ],
)
def test_an_index_that_makes_no_sense_is_damage_for_readers(damaged, statement):
    """No message is lost or doubled for it (§12, L5)."""
    url = damaged(statement)
    with sharedlog.open(url) as log, pytest.raises(sharedlog.CorruptLog):
        log.read("s", 0, limit=1000)


def test_a_name_s_value_that_is_cut_is_damage(damaged):
    """No seq is made of what is left of it (§12, L3)."""
    url = damaged("UPDATE sharedlog_key SET value = kept(key, x'ff0102') WHERE key = 'named/bob'")
    with sharedlog.open(url) as log, pytest.raises(sharedlog.CorruptLog):
        log.producer("bob").last()
