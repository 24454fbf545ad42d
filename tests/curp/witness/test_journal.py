"""A witness's journal, its memory through restarts (DESIGN §7, invariant 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from curp.witness import CorruptJournal, JournalHeld, WitnessJournal


def written(directory: Path, *numbers: int) -> Path:
    journal = WitnessJournal(directory)
    for number in numbers:
        journal.write("g", number)
    journal.close()
    return directory / "witness.journal"


def highest(directory: Path) -> int:
    journal = WitnessJournal(directory)
    journal.close()
    return journal.highest


def test_the_highest_number_is_remembered(tmp_path: Path) -> None:
    """Also over several openings, with the group it belongs to (invariant 2)."""
    assert highest(tmp_path) == 0
    written(tmp_path, 1, 4)
    written(tmp_path, 9)
    journal = WitnessJournal(tmp_path)
    assert (journal.group, journal.highest) == ("g", 9)
    journal.close()


def test_a_torn_line_was_never_answered(tmp_path: Path) -> None:
    """Wherever the last write broke off, the number before it counts, and appends go on."""
    whole = written(tmp_path, 3, 7).read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(lines[1])):
        (tmp_path / "witness.journal").write_bytes(lines[0] + lines[1][:length])
        assert highest(tmp_path) == 3
        written(tmp_path, 5)
        assert highest(tmp_path) == 5


def test_damage_is_told(tmp_path: Path) -> None:
    """A number that was answered is never silently lost: any changed byte is seen (§9)."""
    path = written(tmp_path, 3, 7)
    whole = path.read_bytes()
    for at in range(len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptJournal, match="list it anew"):
            WitnessJournal(tmp_path)
    path.write_bytes(whole + whole.splitlines(keepends=True)[0])
    with pytest.raises(CorruptJournal, match="does not grow"):
        WitnessJournal(tmp_path)
    path.write_bytes(whole)
    assert highest(tmp_path) == 7


def test_one_process_has_it(tmp_path: Path) -> None:
    """A second witness on the directory is refused, until the first one is gone."""
    journal = WitnessJournal(tmp_path)
    with pytest.raises(JournalHeld, match=str(tmp_path)):
        WitnessJournal(tmp_path)
    journal.close()
    assert highest(tmp_path) == 0
