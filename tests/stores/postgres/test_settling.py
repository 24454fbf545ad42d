"""Settling unknown outcomes in PostgreSQL (DESIGN §4)."""

from __future__ import annotations

from tests.stores.settling import SettlesUnknown


class TestPostgres(SettlesUnknown):
    """See there."""
