"""The log in PostgreSQL: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from tests.curp.log.conformance import LogConformance, ServedPlace


class Place(ServedPlace):
    """A group's log in a schema, whose leases are moved instead of its clock."""

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


@pytest.fixture
def place(shared_postgres, group):
    """A log of its own in the shared server."""
    place = Place(shared_postgres, group)
    yield place
    place.close()


# What is made now is in ``test_commits``.
@pytest.mark.long
class TestPostgresConformance(LogConformance):
    """``PostgresEngine``."""
