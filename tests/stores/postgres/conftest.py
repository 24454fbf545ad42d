"""Stores in the run's PostgreSQL, and in the one that tests break."""

from __future__ import annotations

import itertools

import pytest

from tests.stores.postgres.unclaimed_runs import Handler
from tests.stores.redis.replica import Replica

_NAMES = itertools.count()


@pytest.fixture(scope="session")
def shared_server(shared_postgres):
    """One server; tests keep apart by schema."""
    return shared_postgres


@pytest.fixture(scope="session")
def own_server(own_postgres):
    """A server that a test may stop, crash or weaken, if it mends it afterwards."""
    return own_postgres


@pytest.fixture
def schema():
    """Return a name that no other test uses."""
    return f"t{next(_NAMES)}"


@pytest.fixture
def url(shared_server, schema):
    """Return the URL of a store of its own, whose replicas die quickly."""
    return shared_server.url(schema=schema, beat_s=0.1, dead_after_s=0.6, max_connections=6)


@pytest.fixture
def database(shared_server):
    """A connection of the handler's own, with an empty table of effects."""
    with shared_server.connect() as connection:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute("CREATE TABLE IF NOT EXISTS effects (name text)")
        connection.execute("DELETE FROM effects")
        connection.commit()
        yield connection
        connection.rollback()


@pytest.fixture
def replicas(url):
    """Make any number of replicas over one store; all are closed afterwards."""
    opened = []

    def make(where=None, **options):
        opened.append(Replica(where or url, **options))
        return opened[-1]

    yield make
    for replica in opened:
        replica.close()


@pytest.fixture
def handler(shared_server, database):
    """A handler whose record travels with its commit."""
    return Handler(shared_server)


@pytest.fixture
def effects(database):
    """Count the effects that are committed."""

    def count():
        database.rollback()
        return database.execute("SELECT count(*) FROM effects").fetchone()[0]

    return count
