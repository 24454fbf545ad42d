"""A log in PostgreSQL whose server is crashed, weakened, damaged or failed over (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading

import pytest

from curp._cli.command import main
from curp.log import create_log, open_engine
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LeaseHeld,
    LogError,
    LogFull,
    LogUnavailable,
    NoSuchLog,
    NotDurable,
)
from tests.curp.log.conformance import Writer, append_id
from tests.curp.log.damage.place import Place, verified
from tests.curp.log.damage.postgres import Damage
from tests.curp.logs import created
from tests.helpers.waiting import until
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.servers import DroppingProxy
from tests.stores.postgres.test_standby import Pair

pytestmark = pytest.mark.faults


@pytest.fixture
def damage(shared_postgres, group):
    """A log of the test's own in the shared server, not yet created."""
    return Damage(shared_postgres, group)


@pytest.fixture
def apart(shared_postgres, group):
    """The same in a schema of its own, where damage reaches no log of another test."""
    place = Place(Damage(shared_postgres, group, schema=group))
    yield place
    place.close()


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_engine(url)))


def _patiently(work):
    """Do it again while the server is away; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable):
            return (work(),)
        return None

    return until(attempt, "the server is back", 60)[0]


# Connections and sessions that end, and that hang.


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "request lost"])
def test_an_append_whose_connection_is_lost(damage, opened, forward):
    """Asked again under its id it is there once, whether it happened or not (DESIGN §7)."""
    proxy = DroppingProxy(damage.server.port)
    try:
        writer = Writer(opened(created(damage.url(proxy.address))))
        writer.append(b"a")
        name = append_id()
        proxy.drop_at(b"the body", forward=forward)
        with pytest.raises(LogUnavailable):
            writer.append(b"the body", b"c", append_id=name)
        assert _patiently(lambda: writer.append(b"the body", b"c", append_id=name)) == 3
        assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"the body", b"c"]
    finally:
        proxy.close()


@pytest.mark.parametrize(
    "end",
    [
        "terminated",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("crash", "kill")),
    ],
)
def test_a_server_that_ends_in_the_middle_of_an_append(own_postgres, group, opened, end):
    """Nothing of it is there, and the writer goes on (DESIGN §7, invariant 3 of GroupLog)."""
    damage = Damage(own_postgres, group)
    writer = Writer(opened(created(damage.url(timeout_s=5))))
    writer.append(b"a")
    name = append_id()
    failures = []

    def append():
        try:
            writer.append(b"b", append_id=name)
        except LogUnavailable as error:
            failures.append(error)

    with damage.held():
        thread = threading.Thread(target=append)
        thread.start()
        if end == "terminated":
            until(damage.terminate_waiting, "the append waits, and is terminated", 30)
        else:
            until(damage.waiting, "the append waits", 30)
            getattr(own_postgres, end)()
            own_postgres.start()
        thread.join(30)
    assert len(failures) == 1
    assert _patiently(writer.engine.tail) == 1
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2


def test_a_session_that_holds_the_log_delays_and_harms_nothing(damage, opened):
    """A write that waits too long for the row is LogUnavailable, and may be asked again (§7)."""
    writer = Writer(opened(created(damage.url(timeout_s=0.4))))
    with damage.held():
        with pytest.raises(LogUnavailable):
            writer.append(b"a")
        # Readers do not wait for it.
        assert writer.engine.read(0) == []
    assert writer.append(b"a") == 1


def test_a_listener_whose_session_ends_is_made_anew(damage, opened):
    """Meanwhile a waiter looks by itself: no append is missed (DESIGN §7)."""
    url = created(damage.url())
    writer, reader = Writer(opened(url)), opened(url)
    assert reader.wait(0, timeout_s=0) == 0
    until(lambda: damage.hears(reader), "it listens", 30)
    damage.deafen()
    writer.append(b"a")
    assert reader.wait(0, timeout_s=30) == 1
    writer.append(b"b")
    assert reader.wait(1, timeout_s=30) == 2
    until(lambda: damage.hears(reader), "it listens again", 30)


# Servers that are others, or lost something.


@pytest.mark.parametrize("table", ["meta", "log", "entry", "tag", "key"])
def test_a_table_that_is_dropped(apart, table):
    """Nothing is taken for an empty log, and nothing is begun anew (DESIGN §7, §9)."""
    apart.fill()
    writer, reader = Writer(apart.open()), apart.open()
    apart.damage.drop_table(table)
    if table != "meta":
        trim = lambda: reader.trim(4, configuration=writer.configuration)  # noqa: E731
        for ask in (lambda: writer.append(b"b"), trim):
            with pytest.raises(CorruptLog):
                ask()
    # Without its table of logs the schema has none; what is left is in the way of another.
    with pytest.raises(NoSuchLog if table == "log" else CorruptLog):
        Writer(apart.open()).engine.read(2, tag="t")
    with pytest.raises(LogError):
        create_log(apart.url)
    assert verified(apart.url)


@pytest.mark.parametrize("lsn", [1, 4, 10, 20])
def test_a_log_whose_row_says_another_end(apart, lsn):
    """It is CorruptLog to readers, and nothing is acknowledged in another place (DESIGN §7)."""
    apart.fill()
    writer = Writer(apart.open())
    assert writer.append(b"more") == 11
    apart.damage.set_end(lsn)
    assert verified(apart.url)
    for ask in (lambda: apart.open().read(2), apart.open().tail, lambda: writer.append(b"x")):
        with pytest.raises(CorruptLog):
            ask()


def test_a_log_that_is_restored_in_another_server(damage, opened, capsys):
    """It stops for everyone, until an operator accepts what may be lost (DESIGN §6, §7)."""
    url = created(damage.url())
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    damage.set_history("1/1")
    for ask in (lambda: open_engine(url), lambda: writer.append(b"b"), reader.tail):
        with pytest.raises(CorruptLog, match="accept-loss"):
            ask()
    assert main(["recover", url]) == 1
    assert "accept-loss" in capsys.readouterr().err
    assert verified(url) == ""
    asked = ["log", "accept-loss", url, "--who", "ann", "--why", "the machine burnt"]
    assert main(asked) == 0
    for ask in (lambda: writer.append(b"b"), lambda: reader.read(0)):
        with pytest.raises(CorruptLog):
            ask()
    newer = Writer(opened(url), "two")
    assert newer.configuration > 1 << 32
    assert newer.append(b"c") == 2
    assert main(asked) == 1


@pytest.mark.slow
def test_a_promoted_standby_that_may_lack_entries_stops_the_log(opened, capsys):
    """For everyone, until an operator accepts it; who knew more stays away (DESIGN §6, §7)."""
    pair = Pair(synchronous=False)
    try:
        url = created(_log_of(pair))
        writer = Writer(opened(url))
        writer.append(b"a")
        until(lambda: _replayed(pair), "the standby has it", 60)
        with pytest.raises(LogUnavailable, match="is a standby"):
            open_engine(pair.standby.url(group="bank"))
        assert "standbys get it later" in writer.engine.durability
        pair.fail_over()
        with pytest.raises(CorruptLog, match="accept-loss"):
            _patiently(lambda: writer.append(b"b"))
        with pytest.raises(CorruptLog, match="accept-loss"):
            _patiently(lambda: open_engine(url))
        # It can be looked at.
        assert _patiently(lambda: main(["log", "verify", url])) == 0
        asked = ["log", "accept-loss", url, "--who", "ann", "--why", "the primary burnt"]
        assert main(asked) == 0
        assert "goes on" in capsys.readouterr().out
        with pytest.raises(CorruptLog):
            writer.append(b"b")
        newer = Writer(opened(url), "two")
        # A number that the lost primary cannot have given.
        assert newer.configuration > 1 << 32
        assert newer.append(b"c") == 2
        assert main(asked) == 1
    finally:
        pair.stop()


@pytest.mark.slow
def test_a_synchronous_standby_that_is_promoted_goes_on(opened):
    """It has all that was acknowledged, and the log says so and goes on (DESIGN §6, §7)."""
    pair = Pair(synchronous=True)
    try:
        url = created(_log_of(pair))
        writer, reader = Writer(opened(url)), opened(url)
        assert "synchronous standby has it" in writer.engine.durability
        name = append_id()
        writer.append(b"a", append_id=name)
        reader.read(0)
        _cut_short(pair, writer)
        pair.fail_over()
        with pair.standby.connect(autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_reload_conf()")
        assert _patiently(lambda: writer.append(b"c")) == 3
        assert [entry.body for entry in _patiently(lambda: reader.read(0))] == [b"a", b"b", b"c"]
        assert Writer(opened(url), "one").configuration == 2
    finally:
        pair.stop()


def _cut_short(pair, writer):
    """A commit whose wait for the standby somebody cancels is visible, and does not count."""
    pair.standby.crash()
    name, failures = append_id(), []

    def append():
        try:
            writer.append(b"b", append_id=name)
        except LogUnavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=append)
    thread.start()

    def cancelled():
        with pair.primary.connect(autocommit=True) as connection:
            return connection.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ).fetchall()

    until(cancelled, "the commit waits, and is cancelled", 30)
    thread.join(30)
    assert len(failures) == 1
    assert "cut short" in failures[0]
    pair.standby.start()
    until(lambda: pair.follows() == "sync", "the standby follows", 60)
    # Asked again it is found, and waited for.
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2


def _log_of(pair):
    return f"{pair.url}&group=bank".replace("beat_s=0.1&dead_after_s=30&", "")


def _replayed(pair):
    with pair.primary.connect() as connection:
        return connection.execute(
            "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        ).fetchone()[0]


# Settings.


def test_weak_settings_are_refused_or_told(own_postgres, group, opened):
    """When it opens, and by a writer that was there before: nothing is written (DESIGN §6, §7)."""
    url = created(own_postgres.url(group=group))
    writer = Writer(opened(url))
    _set(own_postgres, "full_page_writes", "off")
    try:
        with pytest.raises(NotDurable, match="full_page_writes"):
            open_engine(url)
        with pytest.raises(LogUnavailable, match="full_page_writes"):
            writer.append(b"a")
        weak = opened(url + "&durability=warn")
        assert "full_page_writes is off" in weak.durability
        assert weak.tail() == 0
    finally:
        _set(own_postgres, "full_page_writes", "on")
    assert writer.append(b"a") == 1


def test_synchronous_commit_is_seen_to(own_postgres, group, opened):
    """Off by default on the server, it is on in what the log commits (DESIGN §6)."""
    url = created(own_postgres.url(group=group))
    early = Writer(opened(url))
    _set(own_postgres, "synchronous_commit", "off")
    try:
        late = opened(url)
        assert "synchronous_commit=on" in late.durability
        before = _flushed(own_postgres)
        early.append(b"a" * 100)
        assert _flushed(own_postgres) > before
    finally:
        _set(own_postgres, "synchronous_commit", "on")


def _set(server, name, value):
    with server.connect(autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        connection.execute("SELECT pg_reload_conf()")
    until(lambda: _setting(server, name) == value, "the setting is in force", 30)


def _setting(server, name):
    with server.connect() as connection:
        return connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0]


def _flushed(server):
    with server.connect() as connection:
        return connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()[0]


# Room, rights, clocks, poolers.


def test_a_server_without_room(apart):
    """LogFull says so, and with room again the append happens once (DESIGN §7, §9)."""
    writer = Writer(apart.open())
    writer.append(b"a")
    name = append_id()
    with apart.damage.full():
        with pytest.raises(LogFull, match="no room"):
            writer.append(b"b", append_id=name)
        # What needs no room goes on.
        writer.engine.renew_leadership(1, term_s=100.0)
        assert [entry.body for entry in writer.engine.read(0)] == [b"a"]
    assert writer.append(b"b", append_id=name) == 2
    assert writer.append(b"b", append_id=name, expected_tail=1) == 2
    assert verified(apart.url) == ""


@pytest.fixture
def role(shared_postgres, apart, group):
    """A role that may do nothing yet."""
    name = f"role_{group}"
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        apart.close()
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("missing", ["schema", "log", "entry", "tag", "key"])
def test_a_right_that_is_missing_is_named(apart, role, opened, missing):
    """The operator learns what to grant, and nothing is written (DESIGN §7, §9)."""
    url = apart.url.replace("rifl@", f"{role}@")
    apart.damage.grant(role, without=missing)
    with pytest.raises(LogUnavailable, match=f"permission denied for .*{missing}"):
        Writer(opened(url)).append(b"a", tags=("t",))
    assert apart.open().tail() == 0
    apart.damage.grant(role)
    assert Writer(opened(url)).append(b"a", tags=("t",)) == 1
    assert verified(url) == ""


def test_a_servers_clock_that_jumps_forward_ends_no_lease(apart):
    """Those who saw it jump give a full term from then; renewals go on (DESIGN §7, inv. 10)."""
    writer, other = Writer(apart.open()), apart.open()
    assert 90 < other.leadership().expires_in_s <= 100
    apart.damage.set_clock(3600)
    assert 90 < other.leadership().expires_in_s <= 100
    with pytest.raises(LeaseHeld):
        other.take_leadership("two", "two:1", term_s=100.0)
    writer.engine.renew_leadership(1, term_s=100.0)
    assert writer.append(b"a") == 1
    assert apart.open().leadership().expires_in_s > 90
    # From an end that its leader gave, by the clock of now.
    writer.engine.end_leadership(1)
    assert other.take_leadership("two", "two:1", term_s=100.0) == 2


def test_a_servers_clock_that_jumps_back_makes_a_lease_longer(apart):
    """Late is safe; the leader's next renewal mends it (DESIGN §7, invariant 10)."""
    writer, other = Writer(apart.open()), apart.open()
    assert other.leadership().expires_in_s <= 100
    apart.damage.set_clock(-3600)
    with pytest.raises(LeaseHeld) as held:
        other.take_leadership("two", "two:1", term_s=100.0)
    assert held.value.remaining_s > 3600
    assert writer.append(b"a") == 1
    writer.engine.renew_leadership(1, term_s=100.0)
    assert other.leadership().expires_in_s <= 100


def test_a_pooler_is_refused_unless_it_lends_whole_sessions(shared_postgres, group, opened):
    """In transaction mode whatever the URL says; in session mode it has to be named (§6)."""
    for mode, declared in (("transaction", {"pooler": "session"}), ("session", {})):
        pooler = PgBouncer(shared_postgres, mode)
        try:
            with pytest.raises(InvalidRequest, match="pooler"):
                create_log(pooler.url(group=group, **declared))
        finally:
            pooler.stop()
    pooler = PgBouncer(shared_postgres, "session")
    try:
        url = created(pooler.url(group=group, pooler="session"))
        writer, reader = Writer(opened(url)), opened(url)
        writer.append(b"a")
        assert reader.wait(0, timeout_s=30) == 1
    finally:
        pooler.stop()
