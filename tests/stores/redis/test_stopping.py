"""Closing with handlers running, over Redis (DESIGN §6)."""

from __future__ import annotations

from tests.stores.stopping import KeptUntilTheLastHandler


class TestRedis(KeptUntilTheLastHandler):
    """See there."""
