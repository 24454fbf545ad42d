"""The suite of all engines rejects one that breaks a rule: a suite that cannot fail is none."""

from __future__ import annotations

from contextlib import closing

import pytest

from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.engines import broken_engines, test_conformance

# An engine, the rule of DESIGN-LOG §12 that it breaks, and the tests that find it.
_FOUND_BY = [
    (
        broken_engines.Gapped,
        "L1",
        ("test_lsns_begin_at_one_and_have_no_gaps", "test_what_returned_is_in_every_later_read"),
    ),
    (broken_engines.SeenTooEarly, "L1", ("test_lsns_begin_at_one_and_have_no_gaps",)),
    (broken_engines.HalfAnAppend, "L2", ("test_what_returned_is_in_every_later_read",)),
    (
        broken_engines.WrittenAlthoughRefused,
        "L2",
        ("test_a_refused_commit_writes_nothing_and_says_what_is_there",),
    ),
    (
        broken_engines.Unindexed,
        "L5",
        ("test_a_tagged_read_returns_exactly_what_has_the_tag",),
    ),
    (broken_engines.Skipping, "L6", ("test_what_was_removed_is_told_and_never_skipped",)),
    (broken_engines.StaleTail, "L7", ("test_what_returned_is_in_every_later_read",)),
    (broken_engines.StaleRead, "L7", ("test_what_returned_is_in_every_later_read",)),
]
# An assertion failed, nothing was raised that was to be, or a row is not there.
_REJECTED = (AssertionError, pytest.fail.Exception, IndexError)
_CASES = [
    pytest.param(engine, test, id=f"{rule}-{engine.__name__}-{test}")
    for engine, rule, tests in _FOUND_BY
    for test in tests
]


@pytest.mark.parametrize(("broken", "test"), _CASES)
def test_an_engine_that_breaks_a_rule_is_rejected(broken, test):
    """By the test that says the rule, which a sound engine passes (DESIGN-LOG §12)."""
    suite = getattr(test_conformance, test)
    with closing(MemoryEngine()) as sound:
        suite(sound)
    with closing(broken()) as engine, pytest.raises(_REJECTED) as caught:
        suite(engine)
    # A test that ran out of time has found nothing.
    assert "Timeout" not in str(caught.value)
