"""The log in memory: the conformance suite, and the faults it can be given (DESIGN §2)."""

from __future__ import annotations

import pytest

from curp.log._engine import NewEntry
from curp.log._errors import CorruptLog, EngineUnavailable, TailMismatch
from curp.log._memory import MemoryLog, Moment
from rifl.testing import FakeClock
from tests.curp.log.conformance import TERM_S, LogConformance, Writer, append_id


class Memory:
    """A log in memory, under a clock that is told."""

    def __init__(self):
        self.clock = FakeClock()
        self.log = MemoryLog(self.clock)

    def open(self):
        """One more engine."""
        return self.log.engine()

    def pass_time(self, seconds):
        """Let time pass."""
        self.clock.advance(seconds)


class TestMemoryConformance(LogConformance):
    """``MemoryLog``."""

    @pytest.fixture
    def place(self):
        """A log in memory."""
        return Memory()


class Armed:
    """A fault that strikes once, where it is told."""

    def __init__(self):
        self.target = None

    def __call__(self, operation, moment):
        if self.target == (operation, moment):
            self.target = None
            raise EngineUnavailable(f"{operation}: struck {moment.value}")


def test_a_lost_request_and_a_lost_reply():
    """Only before the moment nothing happened; the same append id settles which (DESIGN §7)."""
    fault = Armed()
    writer = Writer(MemoryLog(FakeClock()).engine(fault))
    name = append_id()
    for moment, tail in ((Moment.BEFORE, 0), (Moment.AFTER, 1)):
        fault.target = ("append", moment)
        with pytest.raises(EngineUnavailable):
            writer.append(b"a", append_id=name)
        assert writer.engine.tail() == tail
    assert writer.append(b"a", append_id=name) == 1


def test_a_lost_reply_of_a_take_over_is_taken_again():
    """A replica whose number got lost takes the next one (DESIGN §7)."""
    fault = Armed()
    engine = MemoryLog(FakeClock()).engine(fault)
    fault.target = ("take_leadership", Moment.AFTER)
    with pytest.raises(EngineUnavailable):
        engine.take_leadership("one", "a:1", term_s=TERM_S)
    assert engine.take_leadership("one", "a:1", term_s=TERM_S) == 2


def test_a_store_that_forgets():
    """Writer and readers notice that the tail went back (DESIGN §7)."""
    log = MemoryLog(FakeClock())
    writer = Writer(log.engine())
    writer.append(b"a", b"b", b"c")
    log.forget(1)
    with pytest.raises(TailMismatch) as caught:
        writer.append(b"d")
    assert caught.value.tail == 1
    with pytest.raises(CorruptLog):
        log.engine().read(3)


def test_a_change_is_told():
    """A simulator hears of appends instead of waiting for them (DESIGN §2)."""
    heard = []
    log = MemoryLog(FakeClock(), lambda: heard.append(log.tail))
    writer = Writer(log.engine())
    writer.append(b"a")
    with pytest.raises(TailMismatch):
        writer.append(b"b", expected_tail=0)
    writer.append(b"b", b"c", expected_tail=1)
    assert heard == [1, 3]


def test_what_was_appended_does_not_change_with_the_callers_buffer():
    """The log keeps bytes of its own (DESIGN §7)."""
    writer = Writer(MemoryLog(FakeClock()).engine())
    body = bytearray(b"a")
    writer.engine.append([NewEntry(body)], configuration=1, expected_tail=0, append_id=append_id())
    body[0] = 0
    assert writer.engine.read(0)[0].body == b"a"
