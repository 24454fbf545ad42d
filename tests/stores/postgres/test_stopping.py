"""Closing with handlers running, over PostgreSQL (DESIGN §6)."""

from __future__ import annotations

from tests.stores.stopping import KeptUntilTheLastHandler


class TestPostgres(KeptUntilTheLastHandler):
    """See there."""
