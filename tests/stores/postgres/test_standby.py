"""A real streaming standby that is promoted: synchronous, asynchronous, and gone (DESIGN §6)."""

from __future__ import annotations

import contextlib

import pytest

from _rifl_ground.refusals import Outcome
from rifl._cli import main
from rifl._stores import StoreCorrupt, open_store
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.postgres.servers import PostgresServer, PostgresStandby
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, PLAIN, Replica, call, keyed

pytestmark = pytest.mark.slow
OPTIONS = "beat_s=0.1&dead_after_s=30&timeout_s=2&max_connections=4"


class Pair:
    """A primary and its standby; the store's URL names both, and finds the primary."""

    def __init__(self, *, synchronous: bool) -> None:
        self.primary = PostgresServer()
        self.standby = PostgresStandby(self.primary)
        with self.primary.connect(autocommit=True) as connection:
            connection.execute("CREATE TABLE effects (name text)")
            if synchronous:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
        wanted = "sync" if synchronous else "async"
        until(lambda: self.follows() == wanted, "the standby follows", 60)

    def follows(self) -> str:
        """Return how the primary says that it is followed."""
        with self.primary.connect() as connection:
            row = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
            return row[0] if row else ""

    @property
    def url(self) -> str:
        """The store's."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://rifl@{hosts}/postgres?target_session_attrs=read-write&{OPTIONS}"

    def fail_over(self) -> None:
        """The primary dies, and the standby is promoted."""
        self.primary.crash()
        self.standby.promote()

    def stop(self) -> None:
        """End both."""
        self.standby.stop()
        self.primary.stop()


@pytest.fixture
def pair(request):
    """A pair of servers that the test may break."""
    servers = Pair(synchronous=request.param == "synchronous")
    yield servers
    servers.stop()


def _answer(replica, arriving):
    try:
        return replica.claim(arriving, IDEMPOTENT)
    except StoreUnavailable as away:
        return away if "may not be run again" in str(away) else None


@pytest.mark.parametrize("pair", ["synchronous"], indirect=True)
def test_a_synchronous_standby_has_all_that_was_acknowledged(pair):
    """After its promotion records, running calls and users' transactions stand (DESIGN §6)."""
    one, two = Replica(pair.url), Replica(pair.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running = one.begin(call(client, 2), IDEMPOTENT)
    atomic = one.begin(call(client, 3), ATOMIC)
    with pair.primary.connect() as connection:
        connection.execute("INSERT INTO effects VALUES ('x')")
        one.store.transactions.record(atomic, FIRST, connection)
    pair.fail_over()
    found = until(lambda: _answer(two, call(client, 1)), "the new primary answers", 60)
    assert found.record == FIRST
    assert one.store.committed(atomic).wait() == FIRST
    with contextlib.suppress(RecordPending):
        one.finish(running, OTHER)
    until(lambda: one.store._attempts.unsettled() <= 1, "what ran is recorded")
    assert two.claim(call(client, 2), IDEMPOTENT).record == OTHER
    with pair.standby.connect() as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    one.close()
    two.close()


@pytest.mark.parametrize("pair", ["synchronous"], indirect=True)
def test_without_its_synchronous_standby_nothing_is_acknowledged(pair):
    """A commit that no standby has is not answered: unknown, and settled when it has (§3)."""
    one = Replica(pair.url)
    client = one.client()
    running = one.begin(call(client, 1), IDEMPOTENT)
    pair.standby.crash()
    with pytest.raises(RecordPending) as owed:
        one.finish(running)
    assert owed.value.outcome is Outcome.UNKNOWN
    with pytest.raises(StoreUnavailable):
        # An intent has to be durable, too.
        one.claim(call(client, 2), PLAIN)
    pair.standby.start()
    until(lambda: not one.store._attempts.unsettled(), "all is settled", 60)
    assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
    assert one.claim(call(client, 2), PLAIN).verdict is Verdict.NEW
    one.close()


def _told_what_is_lost(replica, arriving):
    """Wait until the replica says so, whatever it was refused with before."""
    said = []

    def lost():
        try:
            said.append(f"answered: {replica.claim(arriving, IDEMPOTENT)}")
        except StoreUnavailable as away:
            said.append(str(away))
        return "may not be run again" in said[-1]

    try:
        until(lost, "it is told what is lost", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; it was told {sorted(set(said))}") from error


@pytest.mark.parametrize("pair", ["asynchronous"], indirect=True)
def test_an_asynchronous_standby_that_is_behind_is_not_served_from(pair):
    """Who misses its own durable beats stops, before it asks anything else there (DESIGN §6)."""
    one = Replica(pair.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    until(lambda: _caught_up(pair), "the standby has it")
    pair.standby.cut_off()
    one.finish(one.begin(call(client, 2), IDEMPOTENT))
    beats = one.store._postgres.continuity.beats
    until(lambda: one.store._postgres.continuity.beats > beats, "it beats once more")
    # Not the beats find it out, but the first connection to the new primary.
    one.fall_silent()
    pair.fail_over()
    _told_what_is_lost(one, call(client, 2))
    one.close()


def _key(number):
    return keyed(-7, b"order-%d" % number)


@pytest.mark.parametrize("pair", ["asynchronous"], indirect=True)
def test_processes_that_come_after_a_lossy_failover_are_refused_until_it_is_accepted(pair, capsys):
    """The store knows the history it was written on: nobody runs twenty keys again (DESIGN §6)."""
    one = Replica(pair.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    pair.standby.cut_off()
    for number in range(20):
        one.finish(one.begin(_key(number), IDEMPOTENT))
    # It dies with the primary, and with it all that anybody knew.
    one.fall_silent()
    pair.primary.crash()
    pair.standby.promote()
    one.close()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="rifl accept-loss"):
            open_store(pair.url)
    assert main(["accept-loss", pair.url, "--who", "ann", "--why", "none mattered"]) == 2
    with pytest.raises(StoreCorrupt):
        open_store(pair.url)
    assert main(["accept-loss", pair.url, "--who", "ann", "--why", "none mattered", "--yes"]) == 0
    assert "store" in capsys.readouterr().out
    two = Replica(pair.url)
    # What is there is answered; a client whose calls may be lost gets nothing new.
    assert two.claim(call(client, 1), IDEMPOTENT).record == FIRST
    with pytest.raises(LeaseExpired):
        two.claim(call(client, 2), IDEMPOTENT)
    assert two.client() > client + 2**31
    assert two.claim(_key(0), IDEMPOTENT).verdict is Verdict.NEW
    with pair.standby.connect() as connection:
        rows = connection.execute("SELECT who, why, history_before <> history FROM rifl.losses")
        assert rows.fetchall() == [("ann", "none mattered", True)]
    two.close()


@pytest.mark.parametrize("pair", ["asynchronous"], indirect=True)
def test_one_replica_that_knows_of_a_loss_stops_the_store_for_all(pair):
    """What one of them found out outlives it, and its neighbours stop, too (DESIGN §6)."""
    one, two = Replica(pair.url), Replica(pair.url)
    pair.fail_over()
    for replica in (one, two):
        refused = until(
            lambda replica=replica: _answer(replica, call(1, 1)), "it is told what is lost", 60
        )
        assert isinstance(refused, StoreUnavailable)
    one.close()
    two.close()
    with pytest.raises(StoreCorrupt, match="rifl accept-loss"):
        open_store(pair.url)


@pytest.mark.parametrize("pair", ["asynchronous"], indirect=True)
def test_who_has_said_that_losses_are_accepted_goes_on(pair):
    """With durability=warn a failover is said, and served from (DESIGN §6)."""
    url = f"{pair.url}&durability=warn"
    one = Replica(url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    until(lambda: _caught_up(pair), "the standby has it")
    pair.fail_over()
    found = until(lambda: _answer(one, call(client, 1)), "the new primary answers", 60)
    assert found.record == FIRST
    one.close()
    open_store(url).close()


@pytest.mark.parametrize("pair", ["synchronous"], indirect=True)
def test_a_synchronous_failover_is_no_loss_for_processes_that_come_after(pair):
    """Every commit waited for the standby, as the store noted (DESIGN §6)."""
    one = Replica(pair.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    one.fall_silent()
    pair.fail_over()
    one.close()
    two = Replica(pair.url)
    assert two.claim(call(client, 1), IDEMPOTENT).record == FIRST
    two.close()


def _caught_up(pair):
    with pair.primary.connect() as connection:
        row = connection.execute(
            "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        ).fetchone()
        return bool(row and row[0])
