"""Keys with a term, in every engine (DESIGN-LOG §18; DESIGN §7, invariant 10)."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from rifl.testing import FakeClock
from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.errors import InvalidRequest
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._engines.opening import create_engine
from sharedlog._engines.sqlite import SqliteEngine, create
from sharedlog._engines.terms import BootClock
from tests.helpers.waiting import until
from tests.sharedlog.places import ENGINES, url_of

_LONG_S = 1000.0
# etcd counts whole seconds.
_SHORT_S = 0.05


@pytest.fixture(params=ENGINES)
def engine(request, tmp_path):
    url = url_of(request.param, tmp_path, request.getfixturevalue)
    made = create_engine(url, {})
    yield made
    made.close()


def value(engine, key):
    return engine.get((key,))[key]


def test_a_key_is_absent_once_its_term_is_over(engine):
    """To reads, scans and conditions; others stay (the interface, 5)."""
    engine.commit(Commit(puts=(Put("a/lease", b"1", term_s=_SHORT_S), Put("a/b", b"2"))))
    until(lambda: value(engine, "a/lease") is None, "the term is over")
    assert engine.scan("a/") == {"a/b": b"2"}
    assert engine.remaining("a/lease") <= 0
    with pytest.raises(Refused) as caught:
        engine.commit(Commit((Condition("a/lease", b"1"),), (Put("c", b"3"),)))
    assert caught.value.found == {"a/lease": None}
    absent = Condition("a/lease", None)
    engine.commit(Commit((absent,), (Put("a/lease", b"4", term_s=_LONG_S),)))
    assert engine.scan("a/") == {"a/b": b"2", "a/lease": b"4"}
    assert value(engine, "c") is None


def test_a_key_is_there_until_then(engine):
    """What is left of its term is told, and conditions find it (the interface, 5)."""
    engine.commit(Commit(puts=(Put("lease", b"1", term_s=_LONG_S), Put("key", b""))))
    assert 0.9 * _LONG_S < engine.remaining("lease") <= _LONG_S
    assert engine.remaining("key") == math.inf
    assert engine.remaining("none") == 0.0
    assert engine.scan("lease") == {"lease": b"1"}
    with pytest.raises(Refused) as caught:
        engine.commit(Commit((Condition("lease", None), Condition("key", b""))))
    assert caught.value.found == {"lease": b"1", "key": b""}
    engine.commit(
        Commit((Condition("lease", b"1"),), (Put("other", b"o"),), (NewEntry(b"a", ("t",)),))
    )
    assert value(engine, "other") == b"o"


def test_each_put_begins_a_term_anew_or_ends_it(engine):
    """Also with the same value; a delete leaves nothing of it (the interface, 5)."""
    first, longer = Put("k", b"v", term_s=_LONG_S / 2), Put("k", b"v", term_s=_LONG_S)
    engine.commit(Commit(puts=(first,)))
    assert engine.remaining("k") <= _LONG_S / 2
    engine.commit(Commit((Condition("k", b"v"),), (longer,)))
    assert engine.remaining("k") > 0.9 * _LONG_S
    engine.commit(Commit((Condition("k", b"v"),), (first,)))
    assert engine.remaining("k") <= _LONG_S / 2
    engine.commit(Commit(puts=(Put("k", None),)))
    assert (value(engine, "k"), engine.remaining("k")) == (None, 0.0)
    engine.commit(Commit(puts=(Put("k", b"w"),)))
    assert (value(engine, "k"), engine.remaining("k")) == (b"w", math.inf)


def test_of_those_that_wait_for_the_end_one_gets_the_key(engine):
    """It is judged in the step that writes (DESIGN §7, invariant 2)."""
    engine.commit(Commit(puts=(Put("lease", b"old", term_s=_SHORT_S),)))

    def take(name: bytes) -> bool:
        until(lambda: value(engine, "lease") != b"old", "it is free")
        try:
            engine.commit(
                Commit((Condition("lease", None),), (Put("lease", name, term_s=_LONG_S),))
            )
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        took = [*pool.map(take, [b"1", b"2", b"3", b"4"], timeout=60)]
    assert sum(took) == 1
    assert value(engine, "lease") == [b"1", b"2", b"3", b"4"][took.index(True)]


@pytest.mark.parametrize("term_s", [0, -1.0, math.inf, math.nan, 2.0**40])
def test_a_term_that_cannot_be_is_refused(engine, term_s):
    """Before the store is asked; nothing is written (the engine's limits)."""
    with pytest.raises(InvalidRequest):
        engine.commit(Commit(puts=(Put("k", b"v", term_s=term_s),)))
    with pytest.raises(InvalidRequest):
        engine.commit(Commit(puts=(Put("k", None, term_s=1.0),)))
    assert value(engine, "k") is None


# By clocks that are told.


def test_engines_over_one_memory_share_its_clock():
    """A term that one began is over to the other (the interface, 5)."""
    clock = FakeClock()
    log = MemoryLog(clock=clock)
    one, two = MemoryEngine(log), MemoryEngine(log)
    one.commit(Commit(puts=(Put("k", b"v", term_s=10.0),)))
    clock.advance(9)
    assert (value(two, "k"), two.remaining("k")) == (b"v", 1.0)
    clock.advance(1)
    assert (value(two, "k"), two.remaining("k")) == (None, 0.0)


def test_processes_of_one_boot_share_the_machines_clock(tmp_path):
    """In a SQLite file; a term of another boot begins anew when it is first seen."""
    clock, path = FakeClock(), tmp_path / "log.db"
    create(path)

    def opened(boot: str) -> SqliteEngine:
        return SqliteEngine(path, clock=BootClock(clock, boot))

    one, two = opened("this"), opened("this")
    try:
        one.commit(Commit(puts=(Put("k", b"v", term_s=10.0),)))
        clock.advance(8)
        assert two.remaining("k") == 2.0
        later = opened("the next")
        try:
            assert later.remaining("k") == 10.0
            clock.advance(9)
            assert (value(two, "k"), value(later, "k")) == (None, b"v")
            clock.advance(1)
            assert value(later, "k") is None
            later.commit(Commit((Condition("k", None),), (Put("k", b"w", term_s=5.0),)))
            # Who looks from another boot learns of it only then.
            assert two.remaining("k") == 5.0
        finally:
            later.close()
    finally:
        one.close()
        two.close()
