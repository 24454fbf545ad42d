"""Logs in PostgreSQL, as their processes and their operators meet them (DESIGN-LOG §12)."""

import contextlib
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from _rifl_ground.postgres.marked import send
from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.errors import (
    CorruptLog,
    InvalidRequest,
    LogExists,
    LogFull,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
    NotDurable,
)
from sharedlog._core.producers import append, grant
from sharedlog._engines.checksums import kept
from sharedlog._engines.driving import carry_out
from sharedlog._engines.opening import create_engine, open_engine
from sharedlog._engines.postgres.opening import accept_loss
from tests.helpers.waiting import until
from tests.sharedlog.logs import TOKEN, message, texts
from tests.stores.postgres.servers import DroppingProxy, PostgresServer

ROOT = Path(__file__).parents[3]


class Logs:
    """Logs in a schema of a test's own; closed at its end."""

    def __init__(self, server, stack):
        self.server = server
        self.schema = f"s{secrets.token_hex(4)}"
        self._stack = stack

    def url(self, host="", **options):
        """The URL of a log."""
        return self.server.url(host, **{"schema": self.schema, "log": "one", **options})

    def create(self, keys=None, **options):
        """Create one."""
        return self._closed(create_engine(self.url(**options), keys or {}))

    def open(self, **options):
        """Open one."""
        return self._closed(open_engine(self.url(**options)))

    def run(self, statement):
        """Run a statement behind the engine's back; ``{}`` is the schema."""
        with self.server.connect(autocommit=True) as connection:
            return connection.execute(statement.format(self.schema)).rowcount

    def _closed(self, engine):
        return self._stack.enter_context(contextlib.closing(engine))


@pytest.fixture
def logs(shared_postgres):
    """A schema of the test's own."""
    with contextlib.ExitStack() as stack:
        yield Logs(shared_postgres, stack)


def put(engine, *bodies, tags=("t",)):
    """Append them at once."""
    return engine.commit(Commit(entries=tuple(NewEntry(body, tags) for body in bodies)))


def bodies(engine):
    """All that is there."""
    return [row.body for row in engine.read(0, 1000).rows]


def patiently(work):
    """Do the same again until the server answers."""

    def attempt():
        try:
            return (work(),)
        except LogUnavailable:
            return None

    return until(attempt, "the server answers", 60)[0]


def test_logs_of_one_database_are_apart(logs):
    """Each is created once, with its keys; opening makes none (§12)."""
    with pytest.raises(NoSuchLog):
        logs.open()
    one = logs.create({"incarnation": b"1"})
    with pytest.raises(NoSuchLog):
        logs.open(log="two")
    two = logs.create({"incarnation": b"2"}, log="two")
    with pytest.raises(LogExists):
        logs.create({"incarnation": b"3"})
    put(one, b"a")
    put(two, b"b", b"c")
    for name, engine, found in (("one", one, [b"a"]), ("two", two, [b"b", b"c"])):
        for each in (engine, logs.open(log=name)):
            assert (bodies(each), each.tail()) == (found, len(found))
    assert logs.open().get(("incarnation",)) == {"incarnation": b"1"}
    assert "synchronous_commit=on" in one.durability


def test_wrong_urls_are_refused_without_repeating_them():
    """They may hold a password (§12)."""
    for url in (
        "postgresql://u:secret@h/d?log=a/b",
        "postgresql://u:secret@h/d?log=a&log=b",
        "postgresql://u:secret@h/d?schema=A",
        "postgresql://u:secret@h/d?beat_s=1",
        "postgresql://u:secret@h/d?nonsense=1",
    ):
        with pytest.raises(InvalidRequest) as caught:
            open_engine(url)
        assert "secret" not in str(caught.value)


def test_keys_and_tags_are_any_text(logs):
    """Zeros, other scripts, and what patterns give a meaning (L5)."""
    engine = logs.create({"k\0é%": b"\0"})
    engine.commit(
        Commit(
            (Condition("k\0é%", b"\0"),),
            (Put("k\0\U0001f600", b""),),
            (NewEntry(b"\0", ("t\0é", "%")),),
        )
    )
    assert engine.scan("k\0") == {"k\0é%": b"\0", "k\0\U0001f600": b""}
    assert engine.read(0, 5, "t\0é").rows[0].tags == ("t\0é", "%")
    assert engine.read(0, 5, "_").rows == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {}.entry SET body = 'X' WHERE lsn = 2",
        "UPDATE {}.entry SET tags = 'u' WHERE lsn = 2",
        "UPDATE {}.entry SET lsn = 9 WHERE lsn = 2",
        "DELETE FROM {}.entry WHERE lsn = 1",
        "DELETE FROM {}.entry WHERE lsn = 2",
        "DELETE FROM {}.entry WHERE lsn = 3",
    ],
)
def test_a_damaged_or_missing_row_is_never_skipped(logs, statement):
    """By tag and without (L1)."""
    engine = logs.create()
    put(engine, b"a", b"b", b"c")
    assert logs.run(statement) == 1
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            engine.read(0, 10, tag)


def test_newer_and_damaged_schemas_are_told_apart(logs):
    """Each is a typed error, and stays as it is (§12)."""
    logs.create().close()
    logs.run("UPDATE {}.meta SET value = '99'")
    with pytest.raises(NewerFormat):
        logs.open()
    logs.run("UPDATE {}.meta SET value = 'x'")
    with pytest.raises(CorruptLog):
        logs.open()
    logs.run("DROP TABLE {}.meta")
    with pytest.raises(CorruptLog):
        logs.create(log="two")


def test_a_log_that_went_back_or_is_another_one_is_not_written(logs):
    """What was seen here is missing there: a restore, or a standby that lagged (L1)."""
    engine, other = logs.create(), logs.open()
    put(engine, b"a")
    engine.commit(Commit(puts=(Put("k", b"v"),)))
    logs.run("UPDATE {}.log SET steps = steps - 1")
    for attempt in (lambda: put(engine, b"b"), engine.tail, lambda: engine.read(0, 1)):
        with pytest.raises(CorruptLog, match="went back"):
            attempt()
    assert put(other, b"c") == (2, 2)
    logs.run("UPDATE {}.log SET incarnation = 'another'")
    for attempt in (lambda: put(other, b"b"), other.tail, lambda: other.get(("k",))):
        with pytest.raises(CorruptLog, match="another one"):
            attempt()


def test_another_server_stops_the_log_until_its_loss_is_accepted(logs):
    """For everyone; who accepts that puts another incarnation (§12)."""
    engine = logs.create({"incarnation": b"1"})
    put(engine, b"a")
    assert accept_loss(logs.url(), {"incarnation": b"2"}) == ""
    logs.run("UPDATE {}.log SET history = '1/1'")
    for _ in range(2):
        with pytest.raises(CorruptLog, match="may have lost"):
            logs.open()
    with pytest.raises(CorruptLog, match="may have lost"):
        put(engine, b"b")
    assert "another one" in accept_loss(logs.url(), {"incarnation": b"2"})
    again = logs.open()
    assert again.get(("incarnation",)) == {"incarnation": b"2"}
    assert (put(again, b"c"), bodies(again)) == ((2, 2), [b"a", b"c"])


def test_a_server_that_may_forget_is_refused(logs):
    """Unless somebody says that he knows; then its durability says so (L2)."""
    weak = PostgresServer(fsync="off")
    try:
        url = weak.url(log="one")
        with pytest.raises(NotDurable):
            create_engine(url, {})
        engine = create_engine(f"{url}&durability=warn", {})
        assert "fsync is off" in engine.durability
        assert put(engine, b"a") == (1, 1)
        engine.close()
    finally:
        weak.stop()


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "request lost"])
def test_an_append_whose_connection_is_lost_is_there_once(logs, forward):
    """Its fate is not known; sent again it is answered, or happens now (L3)."""
    proxy = DroppingProxy(logs.server.port)
    try:
        logs.create().close()
        engine = logs.open(host=proxy.address)
        mine = carry_out(engine, grant(TOKEN))
        proxy.drop_at(b"the body", forward=forward)
        with pytest.raises(LogUnavailable) as caught:
            carry_out(engine, append(mine, 1, [message("the body")]))
        assert caught.value.appended is None
        patiently(lambda: carry_out(engine, append(mine, 1, [message("the body")])))
        assert texts(engine) == ["the body"]
    finally:
        proxy.close()


def test_a_full_disk_is_told_and_harms_nothing_else(logs):
    """Nothing of it is written, and room lets it go on (L8; PostgreSQL's error for that)."""
    engine = logs.create()
    put(engine, b"a")
    logs.run(
        "CREATE FUNCTION {0}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'no space left' USING ERRCODE = '53100'; END $$; CREATE TRIGGER f BEFORE INSERT ON "
        "{0}.entry FOR EACH ROW WHEN (octet_length(NEW.body) > 10) EXECUTE FUNCTION {0}.full()"
    )
    with pytest.raises(LogFull) as caught:
        put(engine, b"x" * 100)
    assert caught.value.appended is False
    assert (put(engine, b"b"), bodies(engine)) == ((2, 2), [b"a", b"b"])


def test_who_waits_for_the_log_judges_by_what_the_one_before_wrote(logs):
    """One statement that waited for the row would judge by an older snapshot (L4)."""
    one, two = logs.create(), logs.open()
    one.commit(Commit(puts=(Put("fence", b"1"),)))
    with logs.server.connect() as holder:
        holder.execute(f"SET search_path = {logs.schema}")
        holder.execute("SELECT 1 FROM log FOR UPDATE")
        holder.execute("UPDATE key SET value = %s", (kept("fence", b"2"),))
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(
                two.commit,
                Commit((Condition("fence", b"1"),), (), (NewEntry(b"under the old one"),)),
            )

            def waits():
                with logs.server.connect(autocommit=True) as other:
                    return other.execute(
                        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                        "AND query LIKE %s",
                        (f"%{logs.schema}.commit_1%",),
                    ).fetchall()

            until(waits, "the append waits for the row", 30)
            holder.commit()
            with pytest.raises(Refused) as caught:
                late.result(30)
    assert caught.value.found == {"fence": b"2"}
    assert bodies(one) == []


def test_a_commit_that_ends_a_stores_transaction_does_not_go_on_from_a_changed_key(logs):
    """It is refused by what a key holds, or by its damage, and puts values that fit (§14)."""
    engine = logs.create()
    engine.commit(Commit(puts=(Put("fence", b"1"),)))
    step = Commit(
        (Condition("fence", b"1"),), (Put("at", b"x", Stamp.LAST),), (NewEntry(b"one", ("t",)),)
    )
    joined = engine.joined_commits

    def ended():
        with logs.server.connect() as connection:
            connection.execute("SELECT 1")
            try:
                return joined.lsns(send(connection, joined.ending(step)))
            except psycopg.Error as error:
                return joined.refusal(error, step)

    assert ended() == (1, 1)
    assert engine.get(("at",)) == {"at": b"x" + (1).to_bytes(8, "big")}
    engine.commit(Commit(puts=(Put("fence", b"2"),)))
    assert ended().found == {"fence": b"2"}
    logs.run("UPDATE {}.key SET value = set_byte(value, 8, 49) WHERE key = 'fence'")
    found = ended()
    assert isinstance(found, CorruptLog)
    assert "key 'fence' is damaged" in str(found)
    assert engine.tail() == 1


def test_a_forked_child_has_no_part_in_its_parents_log(logs):
    """Its connections are the parent's."""
    logs.create()
    command = [sys.executable, "-m", "tests.sharedlog.engines.forking", logs.url()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
