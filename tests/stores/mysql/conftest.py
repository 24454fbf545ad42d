"""Stores in the run's MariaDB, and in the one that tests break."""

from __future__ import annotations

import itertools

import pytest

from tests.stores.redis.replica import Replica

_NAMES = itertools.count()


@pytest.fixture
def prefix():
    """Return a prefix of tables that no other test uses."""
    return f"t{next(_NAMES)}_"


@pytest.fixture
def url(shared_mariadb, prefix):
    """Return the URL of a store of its own, whose replicas die quickly."""
    return shared_mariadb.url(prefix=prefix, beat_s=0.1, dead_after_s=0.6, max_connections=6)


@pytest.fixture
def database(shared_mariadb):
    """A connection of the handler's own, with an empty table of effects."""
    connection = shared_mariadb.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS effects (name VARCHAR(100)) ENGINE=InnoDB")
        cursor.execute("DELETE FROM effects")
        cursor.execute("SET innodb_lock_wait_timeout = 5")
    connection.commit()
    yield connection
    connection.close()


@pytest.fixture
def effects(shared_mariadb, database):
    """Count the effects that are committed."""

    def count():
        with shared_mariadb.connect(autocommit=True) as other, other.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM effects")
            return cursor.fetchone()[0]

    return count


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
