"""Engines for tests of the rules; another engine is one more line of ``ENGINES``."""

import pytest

from sharedlog._engines import sqlite
from sharedlog._engines.memory import MemoryEngine


def _sqlite(directory):
    sqlite.create(directory / "log.db")
    return sqlite.SqliteEngine(directory / "log.db")


ENGINES = {"memory": lambda _: MemoryEngine(), "sqlite": _sqlite}


@pytest.fixture(params=sorted(ENGINES))
def each_engine(request, tmp_path):
    made = ENGINES[request.param](tmp_path)
    yield made
    made.close()
