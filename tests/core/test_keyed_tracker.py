"""The tracker of keyed identities: verdicts and bounds (DESIGN §3, §4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import BadHeader, KeyedTracker, Verdict, WindowExceeded

_KEYS = [b"a", b"bb", b"ccc", b"d" * 255, b"e"]
_OTHER = b"ff"
_STEP = st.tuples(
    st.sampled_from(["begin", "begin", "finish", "abandon", "restore", "forget"]),
    st.sampled_from(_KEYS),
    st.integers(0, 90),
)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 4),
    st.sampled_from([10, 70, 150]),
    st.lists(_STEP, max_size=50),
)
def test_it_counts_what_it_knows(
    max_keys: int, max_bytes: int, steps: list[tuple[str, bytes, int]]
) -> None:
    """Verdicts, records, count and bytes are those of a dictionary, and no new call is let
    in beyond either bound (DESIGN §4, bounds of keyed identities)."""
    tracker = KeyedTracker(max_keys, max_bytes)
    model: dict[bytes, tuple[object, int] | None] = {}

    def total() -> int:
        return sum(len(key) + (0 if kept is None else kept[1]) for key, kept in model.items())

    for number, (step, key, size) in enumerate(steps):
        if step == "begin":
            if key in model:
                known = Verdict.IN_PROGRESS if model[key] is None else Verdict.COMPLETED
                assert tracker.begin(key) is known
            elif len(model) >= max_keys or total() + len(key) > max_bytes:
                with pytest.raises(WindowExceeded):
                    tracker.begin(key)
            else:
                assert tracker.begin(key) is Verdict.NEW
                model[key] = None
        elif step == "finish":
            tracker.finish(key, number, size)
            if key in model and model[key] is None:
                model[key] = (number, size)
        elif step == "abandon":
            tracker.abandon(key)
            if key in model and model[key] is None:
                del model[key]
        elif step == "restore":
            tracker.restore(key, number, size)
            model[key] = (number, size)
        else:
            tracker.forget(key)
            model.pop(key, None)
        assert len(tracker) == len(model)
        for probe in _KEYS:
            kept = model.get(probe)
            assert tracker.record(probe) == (None if kept is None else kept[0])
            assert (tracker.peek(probe) is Verdict.NEW) == (probe not in model)
        if len(model) >= max_keys or total() + len(_OTHER) > max_bytes:
            with pytest.raises(WindowExceeded):
                tracker.begin(_OTHER)
        else:
            assert tracker.begin(_OTHER) is Verdict.NEW
            tracker.forget(_OTHER)


@pytest.mark.parametrize("size", [0, 256, 6000])
def test_a_key_out_of_bounds_leaves_no_trace(size: int) -> None:
    """Keys have 1 to 255 bytes; any other is BadHeader and takes no room (DESIGN §3)."""
    tracker = KeyedTracker(max_keys=1, max_bytes=255)
    with pytest.raises(BadHeader):
        tracker.begin(b"k" * size)
    assert len(tracker) == 0
    assert tracker.begin(b"k" * 255) is Verdict.NEW


def test_known_keys_are_answered_when_there_is_no_room() -> None:
    """A full tracker refuses new keys only (DESIGN §4, step 2 before step 5)."""
    tracker = KeyedTracker(max_keys=2)
    tracker.begin(b"done")
    tracker.finish(b"done", "record", 10)
    tracker.begin(b"running")
    with pytest.raises(WindowExceeded):
        tracker.begin(b"new")
    assert tracker.begin(b"done") is Verdict.COMPLETED
    assert tracker.begin(b"running") is Verdict.IN_PROGRESS


def test_a_running_call_may_finish_beyond_the_bound_on_bytes() -> None:
    """Its record is kept, since it ran; the next new key is refused (DESIGN §4)."""
    tracker = KeyedTracker(max_bytes=100)
    tracker.begin(b"k")
    tracker.finish(b"k", "record", 1000)
    assert tracker.record(b"k") == "record"
    with pytest.raises(WindowExceeded):
        tracker.begin(b"n")
    tracker.forget(b"k")
    assert tracker.begin(b"n") is Verdict.NEW
