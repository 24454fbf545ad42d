"""What holds for every test."""

from __future__ import annotations

import logging

import pytest
import structlog
from hypothesis import settings

# Other work on the machine must not fail an example.
settings.register_profile("rifl", deadline=None)
settings.load_profile("rifl")


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """An entry point that configures structlog, or is silent, does so for its test only."""
    yield
    structlog.reset_defaults()
    logging.disable(logging.NOTSET)
