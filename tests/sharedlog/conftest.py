"""Servers for logs, and logs of a test's own in them."""

from __future__ import annotations

import itertools

import pytest

from tests.helpers.log_servers import (
    own_etcd,
    own_postgres,
    own_redis,
    shared_etcd,
    shared_postgres,
    shared_redis,
)

__all__ = [
    "name",
    "own_etcd",
    "own_postgres",
    "own_redis",
    "shared_etcd",
    "shared_postgres",
    "shared_redis",
]

_NAMES = itertools.count()


@pytest.fixture
def name():
    """Name a log of the test's own."""
    return f"log{next(_NAMES)}"
