"""The filter of keys that a store can have (DESIGN §6)."""

from __future__ import annotations

from rifl.core._serving.key_filter import KeyFilter

MANY = 20_000


def test_a_key_that_was_added_is_never_missing() -> None:
    """A key that looks new would run again (DESIGN §6)."""
    known = KeyFilter(0)
    for number in range(MANY):
        known.add(-number % 7, b"%d" % number)
    assert all(known.add(-number % 7, b"%d" % number) for number in range(MANY))


def test_most_others_are_missing() -> None:
    """A key that seems to be there costs a look-up; clients have keys of their own (DESIGN §6)."""
    known = KeyFilter(MANY)
    for number in range(MANY):
        known.add(1, b"%d" % number)
    assert not known.full
    # Of 1000 about 15: each that is asked for is added, too.
    assert sum(known.add(2, b"%d" % number) for number in range(1000)) < 60


def test_it_is_full_in_the_end() -> None:
    """Twice as many keys as were expected fit, and some thousands always (DESIGN §6)."""
    for expected, fit in ((0, 8_000), (MANY, 2 * MANY)):
        known = KeyFilter(expected)
        for number in range(fit):
            known.add(1, b"%d" % number)
        assert not known.full
        for number in range(3 * fit):
            known.add(2, b"%d" % number)
        assert known.full
