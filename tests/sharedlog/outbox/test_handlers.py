"""Outboxes in handlers: effect, answer and message commit together (DESIGN §6, DESIGN-LOG §12)."""

from contextlib import closing, suppress

import pytest

import rifl
import sharedlog
from tests.echo import METHOD, lose_answers, served


@pytest.fixture
def dedup(request, database):
    """The server's, in the application's database."""
    with closing(rifl.Deduplicator(request.param(database), methods={METHOD: "atomic"})) as made:
        yield made


def relayed(database, log):
    """What is in the log, once all is relayed."""
    with closing(sharedlog.relay(database.url, log)) as relay:
        relay.round()
    return [message.text for message in log.read("orders", 0)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("dedup", [lambda database: database.url], indirect=True)
def test_a_shared_transaction_of_sqlite_takes_it_along(database, log, dedup):
    """A replayed call puts nothing into the outbox; a block that is undone leaves nothing."""

    def handler(request, context):
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO orders VALUES (?)", (request.decode(),))
            sharedlog.outbox(connection, log).publish("orders", request)
            if request == b"raises":
                raise ValueError
            rifl.record(context, request, connection)
        return request

    with (
        served(dedup, handler, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        for name in (b"a", b"raises", b"b"):
            with suppress(rifl.CallError):
                call(name, timeout=30)
    assert relayed(database, log) == ["a", "b"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "dedup", [lambda database: f"{database.url}&schema=rifl_of_outboxes"], indirect=True
)
def test_it_travels_with_the_commit_in_postgresql(database, log, dedup):
    """The outbox's head is locked by the last message only; savepoints are kept apart."""

    def handler(request, context):
        with database.connect() as connection, rifl.transaction(context, connection):
            box = sharedlog.outbox(connection, log)
            box.publish("orders", request)
            # Nobody waits for this handler.
            with database.connect() as other:
                other.execute("SET lock_timeout = '5s'")
                sharedlog.outbox(other, log).publish("orders", b"meanwhile")
            connection.execute("SAVEPOINT mine")
            box.publish("orders", b"undone")
            connection.execute("ROLLBACK TO mine")
            connection.execute("INSERT INTO orders VALUES (%s)", (request.decode(),))
            if request == b"raises":
                raise ValueError
            rifl.record(context, request, connection)
            # It is put where it was announced, whatever the path is by then.
            connection.execute("SET search_path = pg_temp")
        return request

    with (
        served(dedup, handler, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        for name in (b"a", b"raises", b"b"):
            with suppress(rifl.CallError):
                call(name, timeout=30)
    assert relayed(database, log) == ["meanwhile", "a", "meanwhile", "meanwhile", "b"]
