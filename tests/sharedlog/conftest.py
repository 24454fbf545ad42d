"""Logs of a test's own."""

from __future__ import annotations

import itertools

import pytest

_NAMES = itertools.count()


@pytest.fixture
def name():
    """Name a log of the test's own."""
    return f"log{next(_NAMES)}"
