"""The thread pool of a gRPC server."""

from __future__ import annotations

from typing import Any


def pool_size(server: Any) -> int:
    """Return how many threads a sync server has; 0 for an aio one, and if it cannot be told."""
    # gRPC has no public way to ask. An unknown size means no waiting, only
    # IN_PROGRESS and a retry; a test holds this to the grpcio we run on.
    pool = getattr(getattr(server, "_state", None), "thread_pool", None)
    size = getattr(pool, "_max_workers", 0)
    return size if isinstance(size, int) else 0
