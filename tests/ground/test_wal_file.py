"""The ``-wal`` of a SQLite file, looked at by several threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from _rifl_ground.sqlite.wal_file import KEPT_BYTES, WalFile

_HEADER = b"\x37\x7f\x06\x82" + bytes(28)


def test_a_thread_that_looked_before_another_one_sees_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saw is older than what is known by then, and shorter (§6)."""
    path = tmp_path / "s.db-wal"
    path.write_bytes(_HEADER + bytes(100))
    wal = WalFile(path)
    assert not wal.written_beyond()
    look = wal._look

    def while_another_looks() -> tuple[bytes, int]:
        found = look()
        monkeypatch.setattr(wal, "_look", look)
        with path.open("ab") as file:
            file.write(bytes(100))
        assert not wal.written_beyond()
        return found

    monkeypatch.setattr(wal, "_look", while_another_looks)
    assert not wal.written_beyond()
    with path.open("ab") as file:
        file.truncate(len(_HEADER) + 50)
    assert wal.written_beyond()
    wal.close()


def test_sqlites_own_cut_of_a_long_one_is_none(tmp_path: Path) -> None:
    """It comes within the commit after which it began anew, when others may have looked (§6)."""
    path = tmp_path / "s.db-wal"
    path.write_bytes(_HEADER)
    wal = WalFile(path)
    with path.open("ab") as file:
        file.truncate(2 * KEPT_BYTES)
        assert not wal.written_beyond()
        file.truncate(KEPT_BYTES)
        assert not wal.written_beyond()
        file.truncate(KEPT_BYTES - 1)
        assert wal.written_beyond()
    wal.close()


def test_each_look_at_one_that_was_cut_off_says_so(tmp_path: Path) -> None:
    """Another thread may look before the first one has stopped anything (§6)."""
    path = tmp_path / "s.db-wal"
    path.write_bytes(_HEADER + bytes(100))
    wal = WalFile(path)
    assert not wal.written_beyond()
    with path.open("ab") as file:
        file.truncate(len(_HEADER) + 50)
    assert wal.written_beyond()
    assert wal.written_beyond()
    path.write_bytes(bytes(200))
    assert wal.written_beyond()
    assert wal.written_beyond()
    wal.close()
