"""A group's log over engines of the shared log: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from curp.log._commits import CommitLog, first_keys
from curp.log._creation import new_log
from rifl.testing import FakeClock
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._engines.sqlite import SqliteEngine, create
from sharedlog._engines.terms import BootClock
from tests.curp.log.conformance import LogConformance


class InMemory:
    """A log in memory, under a clock that is told."""

    def __init__(self, directory):
        self.clock = FakeClock()
        self.log = MemoryLog(first_keys(new_log()), clock=self.clock)

    def engine(self):
        """One more engine."""
        return MemoryEngine(self.log)


class InAFile:
    """A log in a SQLite file, under a clock that is told."""

    def __init__(self, directory):
        self.clock = FakeClock()
        self.path = directory / "log.db"
        create(self.path, first_keys(new_log()))

    def engine(self):
        """One more engine."""
        return SqliteEngine(self.path, clock=BootClock(self.clock, "this"))


class Place:
    """Where a log lives."""

    def __init__(self, kind):
        self.kind = kind
        self.opened = []

    def open(self):
        """One more engine."""
        self.opened.append(CommitLog(self.kind.engine(), clock=self.kind.clock))
        return self.opened[-1]

    def pass_time(self, seconds):
        """Let time pass."""
        self.kind.clock.advance(seconds)


@pytest.fixture(params=[InMemory, InAFile])
def place(request, tmp_path):
    """A log of its own."""
    place = Place(request.param(tmp_path))
    yield place
    for engine in place.opened:
        engine.close()


class TestConformance(LogConformance):
    """``CommitLog``."""
