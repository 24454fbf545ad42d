"""A moment of the log is found exactly (DESIGN-LOG §18: rows' times never fall)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.errors import TrimmedLog
from sharedlog._core.producers import append
from sharedlog._core.times import first_above, first_after
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import carry_out_at, message, producer


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(-1, 10), st.integers(1, 31))
def test_the_first_row_after_a_moment_is_found(times, at_us, low):
    """Where several have one time, where none is later, and from any LSN on."""
    engine = MemoryEngine()
    for each in times:
        engine.commit(Commit(entries=(NewEntry(b"x"),), at_us=each))
    low = min(low, len(times) + 1)
    rows = engine.read(low - 1, 100).rows
    later = [row.lsn for row in rows if row.at_us > at_us]
    expected = later[0] if later else len(times) + 1
    assert carry_out(engine, first_above(at_us, low, len(times))) == expected


def test_a_moment_is_found_in_what_a_trim_left_and_an_earlier_one_is_refused(each_engine):
    """Exactly from the newest trimmed row's time on: never a silent gap (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 9):
        carry_out_at(each_engine, append(mine, seq, [message("a"), message("b")]), 10 * seq)
    carry_out_at(each_engine, trim(Committers(), 75, 20), 75)
    # 60, 70 and 80 stay.
    assert each_engine.first() == 11
    found = {at: carry_out(each_engine, first_after(at)) for at in (50, 59, 60, 79, 80, 99)}
    assert found == {50: 11, 59: 11, 60: 13, 79: 15, 80: 17, 99: 17}
    for at in (0, 49):
        with pytest.raises(TrimmedLog) as caught:
            carry_out(each_engine, first_after(at))
        assert caught.value.first == 11


def test_a_writer_whose_clock_was_ahead_repeats_to_those_who_ask_by_time_and_skips_nothing(
    each_engine,
):
    """What it and later ones appended is after any time before the jump (DESIGN-LOG §18)."""
    mine = producer(each_engine)
    for seq, at in enumerate((10, 20, 1000, 40, 50, 1010), start=1):
        carry_out_at(each_engine, append(mine, seq, [message(str(seq))]), at)
    asked = {at: carry_out(each_engine, first_after(at)) for at in (15, 45, 999, 1000, 1010)}
    assert asked == {15: 2, 45: 3, 999: 3, 1000: 6, 1010: 7}
