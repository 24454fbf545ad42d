"""Notes of replicas' deaths during replay: DESIGN §7, invariant 12."""

from __future__ import annotations

from curp._core.replay_notes import ReplayNote, ReplayNotes, Stretch


def _dies(replays: ReplayNotes, process: str, after: int, through: int) -> ReplayNotes:
    """Have a process note a stretch, and another one of its replica find that."""
    noted = replays.noted(ReplayNote("r1", process, after, through))
    left, stretch = noted.died("r1", f"{process}'")
    assert stretch == left.suspect
    assert not left.notes
    return left


def test_each_death_narrows_the_stretch_to_one_entry() -> None:
    """A whole log, a piece of it, one entry: three deaths, all of them its own (12)."""
    replays = ReplayNotes()
    assert replays.stop(0, 10_000) == 10_000
    replays = _dies(replays, "a", 0, 10_000)
    assert replays.suspect == Stretch(0, 10_000, 1)
    assert replays.stop(4_000, 10_500) == 4_040
    replays = _dies(replays, "b", 4_000, 4_040)
    # In front of it nothing is suspected, and behind it neither.
    assert replays.stop(0, 10_500) == 4_000
    assert replays.stop(4_000, 10_500) == 4_001
    assert replays.stop(4_040, 10_500) == 10_500
    replays = _dies(replays, "c", 4_007, 4_008)
    assert replays.suspect == Stretch(4_007, 4_008, 3)
    assert replays.suspect.single


def test_a_process_that_caught_up_did_not_die() -> None:
    """Whoever passes a stretch shows that it does not kill (12)."""
    replays = ReplayNotes((), Stretch(5, 9, 2)).noted(ReplayNote("r1", "a", 0, 5))
    assert replays.suspect is not None
    assert replays.noted(ReplayNote("r1", "a", 9, 20)).suspect is None
    assert replays.caught_up("r1", 7) == ReplayNotes((), Stretch(5, 9, 2))
    assert replays.caught_up("r1", 9) == ReplayNotes()
    # Its own note is of this process.
    assert replays.died("r1", "a") == (replays, None)
    assert replays.died("r2", "a") == (replays, None)
    assert replays.without("r1").died("r1", "b")[1] is None


def test_a_death_elsewhere_is_another_one() -> None:
    """Deaths are added up within a stretch only (12)."""
    replays = ReplayNotes((), Stretch(100, 200, 5))
    assert _dies(replays, "a", 0, 50).suspect == Stretch(0, 50, 1)
