"""First attempts of atomic methods, which PostgreSQL decides about as they commit (DESIGN §4)."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import rifl
import rifl.aio
from _rifl_ground.refusals import Outcome
from rifl._stores.shared import CountBeat
from rifl._wire.records import record_to_bytes
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import (
    InProgress,
    LeaseExpired,
    PayloadMismatch,
    RecordPending,
    StaleRpc,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.record import CompletionRecord
from tests.helpers.holding import HoldingProxy
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic
from tests.helpers.servers import serve as serve_service
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.postgres.unclaimed_runs import (
    INSERT,
    RAISED,
    UNCLAIMED,
    Handler,
    drive,
    rows,
)
from tests.stores.redis.replica import FIRST, OTHER, call


@pytest.mark.parametrize("way", ["commit", "record"])
def test_the_commit_decides_and_later_arrivals_find_its_record(
    replicas, shared_server, effects, database, way
):
    """Nothing is asked before the handler, and its record is as any other (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    handler, arriving = Handler(shared_server, way=way), call(one.client(), 1)
    handler.before = lambda connection: seen.append(rows(two))
    seen: list[Any] = []
    assert handler.serve(one, arriving) == (FIRST, Outcome.EXECUTED)
    assert seen == [[]]
    assert (rows(two), effects()) == ([(1, True)], 1)
    for replica in (one, two):
        again = call(arriving.client_id, 1, attempt=2)
        assert handler.serve(replica, again) == (FIRST, Outcome.REPLAYED)
    with pytest.raises(PayloadMismatch):
        handler.serve(two, call(arriving.client_id, 1, b"other", attempt=2))
    assert handler.runs == 1


class _Commits(rifl.Observer):
    """What an observer is told of commits."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        assert 0 <= seconds < DEADLINE_S
        self.told.append((entries, error is None))


def test_commits_that_decide_are_told(replicas, handler, effects, shared_server):
    """As claims and records are, one that is refused not, and one that is lost as that (§9)."""
    one, two = replicas(), replicas()
    one.store.observer, two.store.observer = mine, others = _Commits(), _Commits()
    client = one.client()
    handler.serve(one, call(client, 1))
    assert mine.told == [(1, True)]
    # Another copy, on another replica, commits before it.
    other = Handler(shared_server)
    handler.before = lambda connection: other.serve(two, call(client, 2))
    handler.serve(one, call(client, 2))
    assert (mine.told, others.told) == ([(1, True)], [(1, True)])

    def cut_off(connection):
        with psycopg.connect(shared_server.url(), autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))

    handler.before = cut_off
    handler.serve(one, call(client, 3))
    # Behind it the store is asked, which is a claim.
    assert mine.told[:2] == [(1, True), (1, False)]
    assert effects() == 2


async def test_asynchronous_commits_that_decide_are_told(replicas, shared_server, effects):
    """By the same observer (DESIGN §9)."""
    one = replicas()
    one.store.observer = mine = _Commits()
    attempt = one.begin(call(one.client(), 1), UNCLAIMED)
    transactions = one.store.transactions
    async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
        await transactions.begin_async(connection)
        await connection.execute(INSERT)
        await transactions.commit_async(attempt, FIRST, connection)
    assert mine.told == [(1, True)]
    assert effects() == 1


@pytest.mark.parametrize("way", ["commit", "record"])
def test_of_two_first_attempts_on_two_replicas_one_commits(
    replicas, shared_server, effects, database, way
):
    """Both run, and the one whose commit is refused is answered as a duplicate (DESIGN §4)."""
    one, two = replicas(), replicas()
    client, meet = one.client(), threading.Barrier(2, timeout=DEADLINE_S)
    handlers = [Handler(shared_server, way=way, reply=reply) for reply in (FIRST, OTHER)]
    for handler in handlers:
        handler.before = lambda connection: meet.wait()
    with ThreadPoolExecutor(2) as pool:
        served = [
            pool.submit(handler.serve, replica, call(client, 1))
            for handler, replica in zip(handlers, (one, two), strict=True)
        ]
        answers = [each.result() for each in served]
    assert [handler.runs for handler in handlers] == [1, 1]
    assert effects() == 1
    assert {answer.outcome for answer in answers} == {Outcome.EXECUTED, Outcome.REPLAYED}
    assert len({answer.record for answer in answers}) == 1


def test_a_late_copy_of_an_acknowledged_call_is_rolled_back(replicas, handler, effects):
    """Its record is gone, and what was acknowledged decides (DESIGN §4, step 3)."""
    one, two = replicas(), replicas()
    client = one.client()
    other = Handler(handler.server)

    def meanwhile(connection):
        other.serve(two, call(client, 1))
        other.serve(two, call(client, 2, first=2))

    handler.before = meanwhile
    with pytest.raises(StaleRpc):
        handler.serve(one, call(client, 1))
    assert (rows(one), effects(), handler.runs) == ([(2, True)], 2, 1)


@pytest.mark.parametrize("applying", [True, False])
def test_a_record_that_comes_while_another_is_written_is_noticed(
    replicas, handler, effects, database, schema, applying
):
    """Acknowledged meanwhile it goes only while another call applies its own (DESIGN §4).

    So what was acknowledged is judged in a later statement than the one that writes, unless the
    client's row is locked.
    """
    one, two = replicas(), replicas()
    client = one.client()
    database.execute(
        f"CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF current_setting('rifl.held', true) = 'on' THEN "
        "PERFORM pg_advisory_xact_lock(4711); END IF; RETURN NEW; END $$"
    )
    database.execute(
        f"CREATE TRIGGER hold BEFORE INSERT ON {schema}.calls "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.hold()"
    )
    database.commit()
    handler.before = lambda connection: connection.execute("SET LOCAL rifl.held = 'on'")
    other = Handler(handler.server)
    with psycopg.connect(handler.server.url()) as gate, ThreadPoolExecutor(1) as pool:
        gate.execute("SELECT pg_advisory_lock(4711)")
        if applying:
            gate.execute(
                f"SELECT FROM {schema}.clients WHERE client_id = %s FOR NO KEY UPDATE", (client,)
            )
        try:
            late = pool.submit(handler.serve, one, call(client, 1))
            until(
                lambda: gate.execute(
                    "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                ).fetchall(),
                "the late copy is about to write its record",
            )
            # A claim of the call would wait for it: as its record was, with another token.
            gate.execute(
                f"INSERT INTO {schema}.calls (client_id, seq, key, fingerprint, method, kind, "
                "token, owner, record) VALUES (%s, 1, '', 'p', '/s/M', 'atomic', 'x', '', %s)",
                (client, record_to_bytes(OTHER)),
            )
            gate.commit()
            other.serve(two, call(client, 2, first=2))
            assert rows(two) == ([(2, True)] if applying else [(1, True), (2, True)])
        finally:
            gate.execute("SELECT pg_advisory_unlock(4711)")
            gate.commit()
        if applying:
            with pytest.raises(StaleRpc):
                late.result()
        else:
            assert late.result() == (OTHER, Outcome.REPLAYED)
    assert effects() == 1


def test_a_client_that_expired_meanwhile_is_told_that_nothing_ran(replicas, handler, effects):
    """The run was rolled back: the call may be sent anew under another id (DESIGN §3)."""
    one = replicas()
    client = one.client()
    handler.before = lambda connection: one.store.leases.drop_client(client)
    with pytest.raises(LeaseExpired):
        handler.serve(one, call(client, 1))
    assert effects() == 0


def test_a_client_is_not_removed_while_a_commit_that_was_judged_is_under_way(
    replicas, shared_server, database, effects, schema
):
    """Its row is locked until the transaction has ended: whoever is told that it expired, is told
    the truth (DESIGN §4, step 6; §5).
    """
    one = replicas()
    client = one.client()

    def retire():
        database.execute(f"UPDATE {schema}.clients SET due = '-infinity'")
        found = database.execute(f"SELECT {schema}.retire_1(%s, 0)", (client,)).fetchone()[0]
        database.rollback()
        return found

    attempt = one.begin(call(client, 1), UNCLAIMED)
    assert retire() == "dropped"
    database.execute("SET lock_timeout = '50ms'")
    database.commit()
    with shared_server.connect() as connection:
        connection.execute(INSERT)
        one.store.transactions.record(attempt, FIRST, connection)
        database.execute(f"UPDATE {schema}.clients SET due = '-infinity'")
        database.commit()
        assert database.execute(f"SELECT {schema}.retire_1(%s, 0)", (client,)).fetchone() == (
            "busy",
        )
        with pytest.raises(psycopg.errors.LockNotAvailable):
            database.execute(f"SELECT {schema}.drop_1(%s)", (client,))
        connection.commit()
    assert effects() == 1
    assert retire() == "dropped"


def test_nobody_waits_for_a_foreign_lock_within_a_handlers_transaction(
    replicas, handler, effects, database, schema
):
    """Its client's calls are refused as where they are claimed, and soon (DESIGN §4, §6)."""
    one = replicas()
    client, other = one.client(), one.client()
    database.execute(f"SELECT FROM {schema}.clients WHERE client_id = %s FOR UPDATE", (client,))
    with pytest.raises(StoreUnavailable):
        handler.serve(one, call(client, 1))
    assert handler.serve(one, call(other, 1)) == (FIRST, Outcome.EXECUTED)
    assert effects() == 1
    until(lambda: _served(handler, one, client), "the client is served again")
    assert effects() == 2


def _served(handler, replica, client):
    try:
        return handler.serve(replica, call(client, 1)).outcome is Outcome.EXECUTED
    except StoreUnavailable:
        return False


def test_the_window_is_judged_with_the_commit(replicas, handler, effects):
    """A full one refuses; one that the header's acknowledgements free does not (DESIGN §4.4)."""
    one = replicas(window=3)
    client = one.client()
    for seq in range(1, 4):
        assert handler.serve(one, call(client, seq)).outcome is Outcome.EXECUTED
    with pytest.raises(WindowExceeded):
        handler.serve(one, call(client, 4))
    assert effects() == 3
    assert handler.serve(one, call(client, 5, first=3)).outcome is Outcome.EXECUTED
    assert (rows(one), effects()) == ([(3, True), (5, True)], 4)


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_transaction_that_sees_the_past_does_not_decide(replicas, handler, effects, level):
    """It is run again with a claim, and its method is claimed from then on (DESIGN §4, step 6)."""
    one = replicas()
    client = one.client()
    handler.options = {"isolation_level": getattr(psycopg.IsolationLevel, level)}
    assert handler.serve(one, call(client, 1)) == (FIRST, Outcome.EXECUTED)
    assert (handler.runs, effects()) == (2, 1)
    assert isinstance(one.store.claim(call(client, 2), UNCLAIMED), Later)


@pytest.mark.parametrize("way", ["raises", "answers"])
def test_a_run_that_met_its_own_earlier_effect_is_answered_as_that_was(
    replicas, handler, effects, way
):
    """Whatever ends a run without its record first asks the store (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client, other = one.client(), Handler(handler.server, reply=OTHER)

    def run(attempt):
        other.serve(two, call(client, 1))
        assert effects() == 1
        if way == "raises":
            return HandlerResult(RAISED, raised=True, undone=True)
        return HandlerResult(CompletionRecord(code=6, details="it is there already"))

    answer = drive(serve(one.store, call(client, 1), UNCLAIMED), one.store, run)
    assert answer == (OTHER, Outcome.REPLAYED)
    assert effects() == 1


def test_a_run_that_ends_otherwise_is_claimed_before_that_counts(replicas, handler):
    """An error that the handler decides is recorded, one that it raises is not (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    refused = CompletionRecord(code=9, details="no")
    steps = serve(one.store, call(client, 1), UNCLAIMED)
    assert drive(steps, one.store, lambda attempt: HandlerResult(refused)).record == refused
    assert handler.serve(two, call(client, 1, attempt=2)) == (refused, Outcome.REPLAYED)
    steps = serve(one.store, call(client, 2), UNCLAIMED)
    raised = HandlerResult(RAISED, raised=True, undone=True)
    assert drive(steps, one.store, lambda attempt: raised) == (RAISED, Outcome.NOT_EXECUTED)
    assert rows(one) == [(1, True)]
    assert not len(one.store._attempts)


def test_a_run_that_cannot_be_left_at_once_is_left_later(
    replicas, shared_server, effects, schema, database
):
    """A foreign session holds its row: waiters elsewhere are woken all the same (DESIGN §4)."""
    one, two = replicas(), replicas()
    handler = Handler(shared_server, way="record")
    always = MethodPolicy(kind=Kind.ATOMIC, claim="always")
    arriving = call(one.client(), 1)
    with shared_server.connect() as foreign, ThreadPoolExecutor(2) as pool:

        def raise_beside(connection):
            foreign.execute(f"SELECT FROM {schema}.calls FOR UPDATE")
            raise ValueError("and nobody knows what it did")

        handler.before = raise_beside
        with pytest.raises(RecordPending):
            handler.serve(one, arriving, always)
        handler.before = lambda connection: None
        again = call(arriving.client_id, 1, attempt=2)
        waits = pool.submit(handler.serve, two, again, always)
        foreign.rollback()
        assert waits.result(DEADLINE_S) == (FIRST, Outcome.EXECUTED)
    assert (rows(one), effects()) == ([(1, True)], 1)


def test_who_comes_to_wait_while_a_run_is_left_is_woken(
    replicas, shared_server, effects, schema, database
):
    """Between the look at a row and its lock another replica notes that it waits (DESIGN §4)."""
    one, two = replicas(), replicas()
    handler, other = Handler(shared_server, way="record"), Handler(shared_server, way="record")
    always = MethodPolicy(kind=Kind.ATOMIC, claim="always")
    arriving = call(one.client(), 1)
    again = call(arriving.client_id, 1, attempt=2)

    def waiting(count):
        found = database.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND query LIKE %s",
            (f"%{schema}.claim%",),
        ).fetchone()[0]
        database.rollback()
        return found >= count

    with shared_server.connect() as foreign, ThreadPoolExecutor(2) as pool:
        served: list[Any] = []

        def release():
            # The second one is who leaves the run: what it saw of the row is from before.
            until(lambda: waiting(2) or left.done(), "both wait for the row")
            foreign.rollback()

        def raise_beside(connection):
            foreign.execute(f"SELECT FROM {schema}.calls FOR UPDATE")
            served.append(pool.submit(other.serve, two, again, always))
            until(lambda: waiting(1) or served[0].done(), "the other one waits for the row")
            served.append(pool.submit(release))
            raise ValueError("and nobody knows what it did")

        left: Any = Future()
        handler.before = raise_beside
        # On a slow machine the row was locked for too long: it is left later.
        with suppress(InProgress, RecordPending):
            handler.serve(one, arriving, always)
        left.set_result(None)
        assert served[0].result(DEADLINE_S) == (FIRST, Outcome.EXECUTED)
    assert (rows(one), effects()) == ([(1, True)], 1)


def test_arrivals_at_the_same_replica_meet_in_its_memory(replicas, handler, effects):
    """A duplicate waits for the run that the store does not know (DESIGN §4, step 2)."""
    one = replicas()
    client = one.client()
    begun, go_on = threading.Event(), threading.Event()

    def wait(connection):
        begun.set()
        assert go_on.wait(DEADLINE_S)

    handler.before = wait
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(handler.serve, one, call(client, 1))
        assert begun.wait(DEADLINE_S)
        with pytest.raises(PayloadMismatch):
            one.claim(call(client, 1, b"other", attempt=2), UNCLAIMED)
        found = [one.claim(call(client, 1, attempt=number), UNCLAIMED) for number in (1, 2)]
        assert [each.verdict for each in found] == [Verdict.IN_PROGRESS] * 2
        others = [
            pool.submit(handler.serve, one, call(client, 1, attempt=number)) for number in (1, 2)
        ]
        until(lambda: len(found[0].attempt.waiters) == 2, "both wait")
        go_on.set()
        assert first.result().outcome is Outcome.EXECUTED
        assert [each.result() for each in others] == [(FIRST, Outcome.REPLAYED)] * 2
    assert (handler.runs, effects()) == (1, 1)


@pytest.mark.parametrize("late", ["delivered", "lost"])
def test_a_commit_whose_reply_is_lost_is_what_the_store_says(
    replicas, shared_server, database, effects, late
):
    """A commit under way is kept from it by a claim, which stays (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client = one.client()
    proxy = HoldingProxy(shared_server.port)
    handler = Handler(shared_server)
    handler.url = shared_server.url(host=f"127.0.0.1:{proxy.port}")
    broken: list[Any] = []

    def cut(connection):
        proxy.hold_at(b"record_unclaimed")
        broken.append(threading.Thread(target=_closed_when_held, args=(proxy, connection)))
        broken[0].start()

    handler.before = cut
    answer = handler.serve(one, call(client, 1))
    broken[0].join()
    assert answer == (RAISED, Outcome.NOT_EXECUTED)
    if late == "delivered":
        proxy.let_go()
        until(lambda: proxy.delivered, "the commit arrives")
    proxy.close()
    handler.before, handler.url = (lambda connection: None), shared_server.url()
    until(lambda: len(rows(two)) == 1, "the claim stays")
    assert handler.serve(two, call(client, 1, attempt=2)).record == FIRST
    assert effects() == 1


def _closed_when_held(proxy, connection):
    until(lambda: proxy.held, "the commit is on its way")
    connection.pgconn.finish()


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_a_transaction_that_outlives_its_handler_is_waited_for(
    replicas, shared_server, database, effects, ends
):
    """Whether it commits is not known then, and whoever asks hears that (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client = one.client()
    with shared_server.connect() as connection:

        def run(attempt):
            connection.execute(INSERT)
            one.store.transactions.record(attempt, FIRST, connection)
            return HandlerResult(RAISED, raised=True)

        with pytest.raises(RecordPending):
            drive(serve(one.store, call(client, 1), UNCLAIMED), one.store, run)
        found = two.claim(call(client, 1, attempt=2), UNCLAIMED)
        assert found.verdict is Verdict.IN_PROGRESS
        if ends == "commits":
            connection.commit()
        else:
            connection.rollback()
        assert two.woken(found.attempt).wait(DEADLINE_S)
    handler = Handler(shared_server, reply=OTHER)
    stands = FIRST if ends == "commits" else OTHER
    assert handler.serve(two, call(client, 1, attempt=2)).record == stands
    assert effects() == 1


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_was_prepared_refuses_retries_until_it_ends(
    replicas, shared_server, database, effects, ends
):
    """It has no session: each retry is refused at once, and costs the database nothing."""
    one, two = replicas(), replicas()
    client = one.client()
    prepared = f"'{secrets.token_hex(8)}'"
    with shared_server.connect(autocommit=True) as connection:

        def run(attempt):
            connection.execute("BEGIN")
            connection.execute(INSERT)
            one.store.transactions.record(attempt, FIRST, connection)
            connection.execute(f"PREPARE TRANSACTION {prepared}")
            return HandlerResult(RAISED, raised=True)

        try:
            with pytest.raises(InProgress, match="cannot be taken over"):
                drive(serve(one.store, call(client, 1), UNCLAIMED), one.store, run)
            for replica in (one, two):
                with ThreadPoolExecutor(1) as pool:
                    claimed = pool.submit(replica.claim, call(client, 1, attempt=2), UNCLAIMED)
                    with pytest.raises(InProgress, match="cannot be taken over"):
                        claimed.result(DEADLINE_S)
        finally:
            connection.execute(f"{ends} PREPARED {prepared}")
    handler = Handler(shared_server, reply=OTHER)
    stands = FIRST if ends == "COMMIT" else OTHER
    assert handler.serve(two, call(client, 1, attempt=2)).record == stands
    assert effects() == 1


def test_the_open_transaction_of_a_dead_replica_is_ended(
    replicas, shared_server, database, effects
):
    """A later attempt waits while its replica lives, then takes the call (DESIGN §6)."""
    one, two = replicas(), replicas()
    client = one.client()
    with shared_server.connect() as connection:
        attempt = one.begin(call(client, 1), UNCLAIMED)
        connection.execute(INSERT)
        one.store.transactions.record(attempt, FIRST, connection)
        handler = Handler(shared_server, reply=OTHER)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                until, lambda: _not_in_progress(handler, two, client), "it is taken over"
            )
            until(lambda: not handler.runs and len(two.store._attempts._elsewhere), "it waits")
            one.fall_silent()
            assert waiting.result() == (OTHER, Outcome.EXECUTED)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert effects() == 1


def test_a_transaction_that_records_is_never_nobodys(
    replicas, shared_server, database, effects, schema
):
    """Else whoever looks just then takes its replica for gone, and ends it (DESIGN §6)."""
    one = replicas()
    client = one.client()
    database.execute(f"SELECT pg_advisory_lock(hashtextextended(owner, 3)) FROM {schema}.replicas")
    database.commit()
    with shared_server.connect() as connection, ThreadPoolExecutor(1) as pool:
        attempt = one.begin(call(client, 1), UNCLAIMED)
        connection.execute(INSERT)
        recorded = pool.submit(one.store.transactions.record, attempt, FIRST, connection)
        pid = connection.info.backend_pid
        try:
            until(lambda: _waits(database, pid), "it is on its way")
            asked = f"SELECT o_owner FROM {schema}.who_commits_1(%s, 1, NULL)"
            assert database.execute(asked, (client,)).fetchone() == (None,)
        finally:
            database.rollback()
            database.execute("SELECT pg_advisory_unlock_all()")
            database.commit()
        recorded.result(DEADLINE_S)
        (owner,) = database.execute(asked, (client,)).fetchone()
        assert owner
        connection.commit()
    assert effects() == 1


def _waits(database, pid):
    asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
    (found,) = database.execute(asked, (pid,)).fetchone()
    database.rollback()
    return found > 0


def _not_in_progress(handler, replica, client):
    try:
        return handler.serve(replica, call(client, 1, attempt=2))
    except InProgress:
        return None


def test_a_call_takes_one_message_to_begin_and_one_to_end(
    replicas, shared_server, handler, database, schema
):
    """The store is asked once, in the message of the commit: counted by the server (DESIGN §4)."""
    one = replicas()
    client = one.client()
    handler.serve(one, call(client, 1))
    log = shared_server.directory / "log"
    with psycopg.connect(shared_server.url(), autocommit=True) as admin:
        admin.execute("ALTER ROLE rifl SET log_statement = 'all'")
        try:
            # New connections only, as the handler's is; the store's are counted by what they ask.
            asked = one.store._postgres.ask
            requests: list[Any] = []
            one.store._postgres.ask = lambda request: requests.append(request) or asked(request)
            begins = log.stat().st_size
            assert handler.serve(one, call(client, 2, first=2)).outcome is Outcome.EXECUTED
            said = log.read_bytes()[begins:].decode()
        finally:
            admin.execute("ALTER ROLE rifl RESET log_statement")
    told = [line.split("statement: ") for line in said.splitlines() if "statement: " in line]
    # A session that the store opens just then, for its heartbeat, says how it is set.
    (session,) = {before.split("[")[1].split("]")[0] for before, what in told if what == INSERT}
    statements = [what for before, what in told if f"[{session}]" in before]
    assert [each for each in requests if not isinstance(each, CountBeat)] == []
    assert statements[0].startswith("BEGIN; SET LOCAL rifl.transaction = ")
    assert statements[1] == INSERT
    assert f"; SELECT {schema}.record_unclaimed_or_fail_2(" in statements[2]
    assert statements[2].endswith("; COMMIT")
    assert len(statements) == 3


def test_a_method_may_have_every_arrival_claimed(replicas, handler, effects):
    """``claim="always"``: for handlers that cost much (DESIGN §4, step 6)."""
    one = replicas()
    client = one.client()
    always = MethodPolicy(kind=Kind.ATOMIC, claim="always")
    handler.before = lambda connection: seen.append(rows(one))
    seen: list[Any] = []
    assert isinstance(one.store.claim(call(client, 1), UNCLAIMED), Decision)
    assert handler.serve(one, call(client, 2), always) == (FIRST, Outcome.EXECUTED)
    assert (seen, effects()) == ([[(2, False)]], 1)


def test_a_handler_may_ask_whether_its_run_may_be_undone(url, shared_server, database, effects):
    """A first attempt's may, and no run that was claimed (DESIGN §4, step 6)."""
    asked: list[bool] = []

    def move(request, context):
        asked.append(rifl.may_be_undone(context))
        with shared_server.connect() as connection, rifl.transaction(context, connection):
            connection.execute(INSERT)
            rifl.record(context, b"moved", connection)
        return b"something else"

    with (
        rifl.Deduplicator(url, default="atomic") as dedup,
        serve_service("sync", [generic("s.S", {"Move": move})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for seq, attempt in ((1, 1), (1, 2), (2, 2)):
            assert client.call("/s.S/Move", b"x", seq, attempt=attempt).response == b"moved"
        assert client.call("/s.S/Move", b"x", bare=True).response == b"something else"
    assert asked == [True, False, False]
    assert effects() == 3


@pytest.mark.parametrize("way", ["commit", "record"])
async def test_asynchronous_transactions_decide_as_well(replicas, shared_server, effects, way):
    """The first copy's commits, and the other one's is refused (DESIGN §4, step 6)."""
    one, two = replicas(), replicas()
    client = one.client()
    copies = [(each, each.begin(call(client, 1), UNCLAIMED)) for each in (one, two)]
    refused = []
    for replica, attempt in copies:
        transactions = replica.store.transactions
        async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
            if way == "commit":
                await transactions.begin_async(connection)
            await connection.execute(INSERT)
            try:
                if way == "commit":
                    await transactions.commit_async(attempt, FIRST, connection)
                else:
                    await transactions.record_async(attempt, FIRST, connection)
            except StaleRpc:
                refused.append(attempt)
                await transactions.rollback_async(connection)
    (_, first), (_, second) = copies
    assert refused == [second]
    found = one.store.committed(first)
    assert (await found if isinstance(found, Later) else found) == FIRST
    with pytest.raises(InProgress):
        two.store.committed(second)
    assert effects() == 1
