"""A log that is served, and opened over gRPC."""

import secrets

import pytest

import sharedlog
from tests.sharedlog.served import served


@pytest.fixture
def behind():
    """The log behind the server, opened itself."""
    with sharedlog.create(f"memory:{secrets.token_hex(8)}") as made:
        yield made


@pytest.fixture
def url(behind):
    """Of the served log."""
    with served(behind) as server:
        yield f"grpc://{server.address}"


@pytest.fixture
def log(url):
    """It, over gRPC."""
    with sharedlog.open(url) as opened:
        yield opened
