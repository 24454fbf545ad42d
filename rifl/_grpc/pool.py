"""The thread pool of a gRPC server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any


def pool_of(server: Any) -> Executor | None:
    """Return a sync server's pool; None for an aio one, and if it cannot be told."""
    # gRPC has no public way to ask; a test holds this to the grpcio we run on.
    pool = getattr(getattr(server, "_state", None), "thread_pool", None)
    return pool if isinstance(pool, Executor) else None


def pool_size(server: Any) -> int:
    """Return how many threads a sync server has; 0 for an aio one, and if it cannot be told."""
    # An unknown size means no waiting, only IN_PROGRESS and a retry.
    size = getattr(pool_of(server), "_max_workers", 0)
    return size if isinstance(size, int) else 0


def pool_queue(server: Any) -> Callable[[], int] | None:
    """Return what tells how many calls wait for a thread of a sync server; None as above."""
    return getattr(getattr(pool_of(server), "_work_queue", None), "qsize", None)
