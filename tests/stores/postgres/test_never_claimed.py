"""Calls of idempotent methods that say ``claim="never"``, over PostgreSQL (DESIGN §4, step 6)."""

from __future__ import annotations

from tests.stores.never_claimed import NeverClaimed


class TestPostgres(NeverClaimed):
    """See there."""
