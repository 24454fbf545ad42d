"""Logs of groups, of each engine."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from tests.curp import kept_logs
from tests.curp.logs import created

_NAMES = itertools.count()


@pytest.fixture
def group():
    """Name a group of the test's own."""
    return f"g{next(_NAMES)}"


class KeptLog:
    """A log of a group's own, in a server that others share, of any engine."""

    def __init__(self, url, engine, keep):
        self.url = url
        # Its name, as of the parameter.
        self.engine = engine
        # Copies the log; what puts the copy into its place.
        self.keep = keep


@pytest.fixture
def log(request, tmp_path):
    """A new log of the engine that the test's parameter names; that of ``sqlite`` is a file."""
    engine = request.param
    if engine == "sqlite":
        file = tmp_path / "bank.log"
        url, keep = f"sqlite:///{file}?group=bank", partial(kept_logs.keep_sqlite, file)
    else:
        group, server = f"g{next(_NAMES)}", request.getfixturevalue(f"shared_{engine}")
        url = server.url(group=group)
        keep = partial(getattr(kept_logs, f"keep_{engine}"), server, group)
    return KeptLog(created(url), engine, keep)
