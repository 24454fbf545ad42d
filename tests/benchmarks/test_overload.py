"""The figures of a run under overload, from what clients and servers noted."""

from __future__ import annotations

from pathlib import Path

from benchmarks.overload.__main__ import _back, _figures
from benchmarks.overload.load import Call
from benchmarks.overload.notes import Notes, read
from benchmarks.tables import OVERLOAD_COLUMNS, figures_page


def test_notes_survive_and_tell_late_and_doubled_effects(tmp_path: Path) -> None:
    """Two files, as of two servers or one that was started again."""
    first, second = tmp_path / "a", tmp_path / "b"
    notes = Notes(first)
    for at, call in ((1.0, "x"), (2.0, "y"), (3.0, "x")):
        notes.arrived(at)
        notes.began(at, call)
        notes.ended(at + 0.5, call, late=at > 2.5)
    Notes(second).arrived(4.0)
    found = read([first, second, tmp_path / "never-started"])
    assert found.arrivals == [[1.0, 2.0, 3.0], [4.0], []]
    assert found.began == [1.0, 2.0, 3.0]
    assert found.too_late == [3.5]
    assert found.doubled == 1


def test_back_is_where_nine_of_ten_are_answered_for_two_seconds() -> None:
    """A single good second is none."""
    calls = [Call(at / 10, answered=not 30 <= at < 80) for at in range(200)]
    assert _back(calls, 5.0) is not None
    assert 2.9 <= (_back(calls, 5.0) or 0) <= 3.0
    flickering = [Call(at / 10, answered=at % 20 < 10) for at in range(200)]
    assert _back(flickering, 5.0) is None


def test_figures_count_by_when_calls_began(tmp_path: Path) -> None:
    """Ten calls a second, each sent twice while it goes wrong, when half are answered."""
    notes = Notes(tmp_path / "a")
    calls = []
    for at in range(300):
        wrong = 100 <= at < 200
        begin = at / 10 + 0.05
        calls.append(Call(begin, answered=not (wrong and at % 2)))
        for _ in range(1 + wrong):
            notes.arrived(begin)
        notes.began(begin, str(at))
        notes.ended(begin + 0.01, str(at), late=wrong and at % 4 == 1)
    found = _figures(calls, read([tmp_path / "a"]), 10.0, 20.0)
    assert (found["before"], found["during"], found["after"]) == (10.0, 5.0, 10.0)
    assert found["arrivals"] == 2.0
    assert found["too late"] == 0.23
    assert found["back"] == 0.0
    assert (found["doubled"], found["shares"]) == (0, [1.0])


def test_the_page_has_a_row_for_each_side_of_a_case() -> None:
    """Of a side that never came back, too."""
    figure = dict.fromkeys(OVERLOAD_COLUMNS, 1.5) | {"back": None, "shares": [0.5, 0.5]}
    page = figures_page({}, {}, {"two targets": {"rifl": figure, "revision": "abc"}})
    row = "| two targets | rifl | 1.5 | 1.5 | 1.5 | 1.5 | 1.5 | never | 1.5 | 0.50 0.50 |"
    assert row in page.splitlines()
    assert "abc" not in page
