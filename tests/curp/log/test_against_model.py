"""Random operations on every engine, with one in plain lists as the model (DESIGN §7)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from curp.log._errors import LeaseHeld, LogError, TailMismatch, TrimmedLog
from curp.log._values import MetadataCondition, NewLogEntry
from rifl.testing import FakeClock
from tests.curp.log import test_commits
from tests.curp.log.model import ModelLog

pytestmark = pytest.mark.slow

TERM_S = 1000.0
_GROUPS = itertools.count()

_small = st.integers(min_value=0, max_value=3)
_names = st.sampled_from(["one", "two"])
_keys = st.sampled_from(["k", "l"])
_values = st.sampled_from([None, b"", b"v", b"w"])
_tags = st.lists(st.sampled_from(["a", "b", "ü"]), unique=True, max_size=3).map(tuple)
_entries = st.lists(st.builds(NewLogEntry, st.binary(max_size=40), _tags), min_size=1, max_size=4)
_metadata = st.dictionaries(_keys, _values, max_size=2)
_conditions = st.none() | st.builds(MetadataCondition, _keys, _values)


def _outcome(work):
    """What an operation gave: its value, or its error with what that tells."""
    try:
        return work()
    except LogError as error:
        if isinstance(error, TailMismatch):
            return type(error), error.tail
        if isinstance(error, TrimmedLog):
            return type(error), error.first
        if isinstance(error, LeaseHeld):
            return type(error), round(error.remaining_s / TERM_S, 1)
        return type(error)


class Machine(RuleBasedStateMachine):
    """Two handles on the engine's log and two on the model's, asked the same."""

    place = None  # Set by the test: a function that makes one.

    def __init__(self):
        super().__init__()
        self.place = type(self).place()
        self.clock = FakeClock()
        self.model = ModelLog(self.clock)
        self.pairs = [(self.place.open(), self.model.open()) for _ in range(2)]
        self.appended, self.done = {}, {}

    def teardown(self):
        """Close what was opened."""
        self.place.close()

    def both(self, handle, ask, also=()):
        """Ask engine and model the same, and compare; return the model's outcome.

        ``also``: what the engine may tell as well.
        """
        engine, model = self.pairs[handle % 2]
        found, expected = _outcome(lambda: ask(engine)), _outcome(lambda: ask(model))
        assert found in (expected, *also)
        return expected

    @property
    def configuration(self):
        """The current number."""
        return self.model.configuration

    @initialize()
    def lead(self):
        """Begin with a leader: most of what there is to do needs one."""
        self.both(0, lambda e: e.take_leadership("one", "one:1", term_s=TERM_S))

    @rule(handle=_small, name=_names)
    def take(self, handle, name):
        """Try to lead."""
        self.both(handle, lambda e: e.take_leadership(name, f"{name}:1", term_s=TERM_S))

    @rule(steps=st.sampled_from([0.4, 0.9, 1.3]))
    def let_pass(self, steps):
        """Let time pass."""
        self.place.pass_time(steps * TERM_S)
        self.clock.advance(steps * TERM_S)

    @rule(handle=_small, back=_small)
    def renew(self, handle, back):
        """Renew under the current number or an older one."""
        number = self.configuration - back
        self.both(handle, lambda e: e.renew_leadership(number, term_s=TERM_S))

    @rule(handle=_small, back=_small)
    def end(self, handle, back):
        """Give the lease back."""
        self.both(handle, lambda e: e.end_leadership(self.configuration - back))

    @rule(handle=_small, back=_small, metadata=_metadata)
    def next(self, handle, back, metadata):
        """Begin the next configuration."""
        number = self.configuration - back
        self.both(handle, lambda e: e.next_configuration(number, metadata, term_s=TERM_S))

    @rule(
        handle=_small,
        entries=_entries,
        back=st.sampled_from([0, 0, 0, 1, -1]),
        off=st.sampled_from([0, 0, 0, 0, 1, -1]),
        condition=_conditions,
        metadata=_metadata,
    )
    def append(self, handle, entries, back, off, condition, metadata):
        """Append, mostly where it can be done."""
        expected = max(0, self.model.tail + off)
        name = b"%016d" % (len(self.appended) + 100)
        arguments = {
            "configuration": self.configuration - back,
            "expected_tail": expected,
            "append_id": name,
            "condition": condition,
            "metadata": metadata,
        }
        self.appended[name] = (entries, arguments)
        told = self.both(handle, lambda e: e.append(entries, **arguments))
        if isinstance(told, int):
            self.done[name] = told

    @rule(handle=_small, entries=_entries, condition=_conditions, metadata=_metadata)
    def append_here(self, handle, entries, condition, metadata):
        """Append as the leader does."""
        self.append(handle, entries, 0, 0, condition, metadata)

    @precondition(lambda self: self.appended)
    @rule(handle=_small, data=st.data())
    def append_again(self, handle, data):
        """Ask for an earlier append again, as after a lost reply."""
        self.again(handle, data.draw(st.sampled_from(sorted(self.appended))))

    def again(self, handle, name):
        """Ask so for one; of an append that was trimmed an engine may still know that it was."""
        entries, arguments = self.appended[name]
        also = ()
        if name in self.done and arguments["expected_tail"] < self.model.trimmed:
            also = (self.done[name],)
        self.both(handle, lambda e: e.append(entries, **arguments), also)

    @rule(handle=_small, back=_small, metadata=_metadata, condition=_conditions)
    def put(self, handle, back, metadata, condition):
        """Write metadata."""
        number = self.configuration - back
        self.both(
            handle,
            lambda e: e.put_metadata(metadata, configuration=number, condition=condition),
        )

    @rule(
        handle=_small,
        back=_small,
        limit=st.sampled_from([1, 2, 1000]),
        max_bytes=st.sampled_from([1, 50, 8 << 20]),
        tag=st.none() | st.sampled_from(["a", "ü", "no"]),
    )
    def read(self, handle, back, limit, max_bytes, tag):
        """Read from somewhere before the end."""
        after = max(0, self.model.tail - back * back)
        self.both(handle, lambda e: e.read(after, limit=limit, max_bytes=max_bytes, tag=tag))

    @rule(handle=_small, back=_small, stale=st.booleans(), chunks=st.lists(st.binary(max_size=9)))
    def save(self, handle, back, stale, chunks):
        """Save a snapshot."""
        lsn = max(0, self.model.tail - back)
        number = self.configuration - stale
        self.both(handle, lambda e: e.save_snapshot(lsn, chunks, configuration=number))

    @rule(handle=_small, back=_small, stale=st.booleans())
    def trim(self, handle, back, stale):
        """Trim, up to the snapshot or not."""
        through = max(0, self.model.tail - back)
        number = self.configuration - stale
        self.both(handle, lambda e: e.trim(through, configuration=number))

    @rule(handle=_small)
    def reopen(self, handle):
        """Close an engine and open another one."""
        old = self.pairs[handle % 2][0]
        old.close()
        self.pairs[handle % 2] = (self.place.open(), self.model.open())

    @invariant()
    def all_is_the_same(self):
        """Everything there is to see is the same, whoever did it."""
        first = self.model.trimmed
        self.both(0, lambda e: (e.tail(), e.first(), e.metadata("k"), e.metadata("l")))
        self.both(1, lambda e: e.read(first))
        self.both(1, _snapshot)
        self.both(0, _leadership)


def _snapshot(engine):
    found = engine.load_snapshot()
    return found and (found.lsn, list(found.chunks))


def _leadership(engine):
    found = engine.leadership()
    return found and found._replace(expires_in_s=round(max(0.0, found.expires_in_s) / TERM_S, 1))


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "sqlite",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in test_commits.SERVED),
    ],
)
def test_an_engine_does_what_the_model_does(kind, request, tmp_path):
    """Same values, same errors, same state after every step (DESIGN §7: one interface)."""
    places = test_commits.InMemory
    if kind == "sqlite":
        places = lambda: test_commits.InAFile(tmp_path / "log.db", f"m{next(_GROUPS)}")  # noqa: E731
    elif kind in test_commits.SERVED:
        server = request.getfixturevalue(f"shared_{kind}")
        places = lambda: test_commits.SERVED[kind](server, f"m{next(_GROUPS)}")  # noqa: E731
    machine = type("OneMachine", (Machine,), {"place": staticmethod(places)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=6 if kind == "postgres" else 12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_an_append_that_was_trimmed_is_recognised_or_refused(tmp_path):
    """Nothing is appended twice by that; random operations found it once (DESIGN §7)."""
    place = lambda: test_commits.InAFile(tmp_path / "log.db", "m")  # noqa: E731
    machine = type("OneMachine", (Machine,), {"place": staticmethod(place)})()
    try:
        machine.lead()
        for _ in range(2):
            machine.append_here(0, [NewLogEntry(b"", ())], None, {})
            (*_, name) = machine.appended
            machine.again(0, name)
            machine.save(0, 0, False, [])
            machine.trim(0, 0, False)
            for each in machine.appended:
                machine.again(1, each)
            machine.all_is_the_same()
    finally:
        machine.teardown()
