"""A cursor of what handlers get over PostgreSQL: it sends nothing that ends their transaction."""

from __future__ import annotations

from _rifl_ground.postgres.lent import LentCursor
from sharedlog._core.errors import InvalidRequest


class HandlerCursor(LentCursor):
    """Raises ``InvalidRequest`` for what would end the consumer's transaction, or run outside."""

    refused = InvalidRequest
    lender = "the consumer"
