"""Stores of the generic backend, in the run's PostgreSQL."""

from __future__ import annotations

import itertools

import pytest

_NAMES = itertools.count()


@pytest.fixture(scope="session")
def shared_server(shared_postgres):
    """One server; tests keep apart by schema."""
    return shared_postgres


@pytest.fixture
def schema():
    """Return a name that no other test uses."""
    return f"generic{next(_NAMES)}"
