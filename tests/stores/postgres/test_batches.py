"""Batched calls over PostgreSQL: many statements a round trip (DESIGN §4, §6)."""

from __future__ import annotations

from tests.stores.batches import opposite_orders_on_two_replicas


def test_two_replicas_take_batches_in_opposite_order(url):
    """Each row happens once, on one of them, and nobody waits in a ring (DESIGN §4)."""
    opposite_orders_on_two_replicas(url)
