"""Retention over a PostgreSQL whose clock is set wrong (DESIGN §5)."""

from __future__ import annotations

import pytest

from chaos.run.wall_clock import wall_clocks
from tests.stores.lived_time import LivedTime
from tests.stores.postgres.servers import PostgresServer


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A server, and its clock."""
    directory = tmp_path_factory.mktemp("clocks")
    for path in (directory, *directory.parents[:2]):
        # PostgreSQL runs as somebody else.
        path.chmod(0o755)
    clock = wall_clocks(["postgres"], directory)["postgres"]
    server = PostgresServer(clock.environment)
    yield server, clock
    server.stop()


class TestPostgres(LivedTime):
    """See ``LivedTime``."""

    @pytest.fixture
    def clocked(self, moved, schema):
        """Return the URL of a store of its own."""
        return moved[0].url(schema=schema, beat_s=0.05, dead_after_s=30, max_connections=4)

    @pytest.fixture
    def clock(self, moved):
        """Return the server's clock."""
        return moved[1]

    @pytest.fixture
    def lived(self, moved, schema):
        """Return what reads the counter, in seconds."""

        def read():
            with moved[0].connect() as connection:
                row = connection.execute(
                    f"SELECT extract(epoch FROM lived)::float8 FROM {schema}.age"
                ).fetchone()
                return row[0]

        return read
