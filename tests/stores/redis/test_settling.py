"""Settling unknown outcomes in Redis (DESIGN §4)."""

from __future__ import annotations

from tests.stores.settling import SettlesUnknown


class TestRedis(SettlesUnknown):
    """See there."""
