"""Stores that were restored from a backup, or copied (DESIGN §3, §5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import rifl
from lease_server.storage import RANDOM_BITS


def _granted(path: Path, count: int) -> set[int]:
    with rifl.Deduplicator(f"sqlite:///{path}") as dedup:
        return {dedup._authority.grant().client_id for _ in range(count)}


def test_a_copy_of_a_store_grants_ids_of_its_own(tmp_path: Path) -> None:
    """The original and its copy count alike, and draw each id (DESIGN §5)."""
    original, copy = tmp_path / "original.db", tmp_path / "copy.db"
    _granted(original, 1)
    shutil.copy(original, copy)
    one, other = _granted(original, 200), _granted(copy, 200)
    assert not one & other
    assert {each >> RANDOM_BITS for each in one} == {each >> RANDOM_BITS for each in other}
    assert 0 < min(one | other) < max(one | other) < 2**63
