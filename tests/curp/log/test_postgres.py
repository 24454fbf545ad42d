"""The log in PostgreSQL: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from curp.log import open_engine
from curp.log._creation import new_log
from tests.curp.log.conformance import LogConformance


class Place:
    """A group's log in a schema, whose leases are moved instead of its clock."""

    def __init__(self, server, group, **options):
        self.server = server
        self.group = group
        self.url = server.url(group=group, **options)
        self.opened = []
        self.new = new_log()

    def open(self, **options):
        """One more engine; the first creates the log."""
        self.opened.append(open_engine(self.url, new=self.new, **options))
        self.new = None
        return self.opened[-1]

    def run(self, statement, *arguments):
        """Run a statement of the database's own; ``{}`` is where the log's id goes."""
        with self.server.connect(autocommit=True) as connection:
            found = connection.execute(
                "SELECT log_id FROM curp.log WHERE name = %s", (self.group.encode(),)
            ).fetchone()
            return connection.execute(statement.format(found[0]), arguments)

    def pass_time(self, seconds):
        """Let time pass."""
        self.run("UPDATE curp.log SET expires_at = expires_at - %s WHERE log_id = {}", seconds)

    def close(self):
        """Close all engines."""
        for engine in self.opened:
            engine.close()


@pytest.fixture
def place(shared_postgres, group):
    """A log of its own in the shared server."""
    place = Place(shared_postgres, group)
    yield place
    place.close()


class TestPostgresConformance(LogConformance):
    """``PostgresEngine``."""

    @pytest.fixture
    def place(self, place):
        """A log in PostgreSQL."""
        return place
