"""A replica over the generic backend, for the conformance suite."""

from __future__ import annotations

import math

from tests.stores import conformance
from tests.stores.redis import test_conformance as shared

__all__ = ["SqlOpened"]


class SqlOpened(shared.SharedOpened):
    """Telling it the time moves the leases in the store."""

    @property
    def now(self):
        """The time that was told."""
        return self._now

    @now.setter
    def now(self, value):
        leases, passed_s = self.store.leases, float(value - self._now)
        leases._transact(lambda sql: sql.run("UPDATE @.clients SET due = due - %s", passed_s))
        # And this replica looked on all the while.
        run = leases._transact(lambda sql: sql.dialect.run(sql.connection))
        leases._watch.saw(run, conformance.TERM_S)
        leases._watch._since = -math.inf
        self._now = value
