"""Logs of each engine."""

import pytest

import sharedlog
from tests.sharedlog.places import ENGINES, url_of


@pytest.fixture(params=ENGINES)
def url(request, tmp_path):
    """Of a log that is not there yet."""
    return url_of(request.param, tmp_path, request.getfixturevalue)


@pytest.fixture
def log(url):
    """An empty log."""
    with sharedlog.create(url) as made:
        yield made
