"""The MariaDB store through the conformance suite (DESIGN §6)."""

from __future__ import annotations

import pytest

from tests.stores import conformance
from tests.stores.redis import test_conformance as shared
from tests.stores.sql.opened import SqlOpened


class TestMariaDb(shared.TestRedis):
    """``mysql://``, with leases that live in the store."""

    @pytest.fixture(autouse=True)
    def _shared(self, monkeypatch):
        monkeypatch.setattr(conformance, "Opened", SqlOpened)
        monkeypatch.setattr(shared, "SharedOpened", SqlOpened)

    @pytest.fixture
    def url(self, shared_mariadb, prefix):
        """Return the URL of a store of its own, in whose time a busy machine does anything."""
        return shared_mariadb.url(prefix=prefix, beat_s=0.1, dead_after_s=60, timeout_s=60)
