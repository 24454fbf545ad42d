"""Three server processes over one MariaDB, clients hopping, one killed or suspended."""

from __future__ import annotations

import pytest

from tests.stores.postgres.test_processes import lose_one
from tests.stores.redis import test_processes as shared

CASES = [
    ("plain", "after effect", "killed"),
    ("idempotent", "after record", "killed"),
    ("atomic", "after effect", "killed"),
    # Its session holds the call: the take-over kills it.
    ("atomic", "after record queued", "continued"),
]


@pytest.fixture(scope="module")
def cluster(shared_mariadb):
    """A cluster."""
    with shared_mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS effects (name VARCHAR(100)) ENGINE=InnoDB")
    url = shared_mariadb.url(prefix="p_", beat_s=0.1, dead_after_s=0.8, max_connections=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "SERVER", "tests.stores.mysql.server_process")
        made = shared.Cluster(url, shared_mariadb.url(), "sync")
        yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "point", "fate"), CASES)
def test_one_replica_lost_at_a_named_point(cluster, shared_mariadb, declared, point, fate):
    """Effects and answers are counted with a replica killed, or suspended (DESIGN §1, §6)."""

    def counted(name):
        with shared_mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM effects WHERE name = %s", (name.decode(),))
            return cursor.fetchone()[0]

    lose_one(cluster, counted, "sync", declared, point, fate)


def test_a_server_has_a_place_of_its_own_for_temporary_tables(own_mariadb):
    """One that starts removes those that it finds there: two could not be made at once."""
    with own_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@tmpdir")
        assert cursor.fetchone() == (str(own_mariadb.directory / "tmp"),)
