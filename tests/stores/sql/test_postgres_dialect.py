"""The generic backend over PostgreSQL, through the conformance suite: a dialect is enough (§6)."""

from __future__ import annotations

import pytest

from benchmarks.postgres_dialect import PostgresDialect
from rifl._stores.sql.inspection import SqlInspection
from rifl._stores.sql.store import SqlStore
from tests.stores import conformance
from tests.stores.redis import test_conformance as shared
from tests.stores.sql.opened import SqlOpened


class TestGenericOverPostgres(shared.TestRedis):
    """``SqlStore`` over psycopg, with leases that live in the store."""

    @pytest.fixture(autouse=True, params=["sync"])
    def shell(self):
        """Wait in threads: an event loop's requests run in threads, too."""

    @pytest.fixture(autouse=True)
    def _shared(self, monkeypatch, shared_server, schema):
        # In its time a busy machine does anything.
        dialect = PostgresDialect(shared_server.url(), schema, timeout_s=60.0)
        timing = {"beat_s": 0.1, "dead_after_s": 60.0}
        monkeypatch.setattr(
            shared, "open_store", lambda _, codec: SqlStore(dialect, codec=codec, **timing)
        )
        monkeypatch.setattr(
            conformance,
            "open_inspection",
            lambda _: SqlInspection(dialect, beat_s=0.1, dead_after_s=1.0),
        )
        monkeypatch.setattr(conformance, "Opened", SqlOpened)
        monkeypatch.setattr(shared, "SharedOpened", SqlOpened)

    @pytest.fixture
    def url(self):
        """Return what no URL says."""
        return "generic:"
