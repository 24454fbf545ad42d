"""The benchmarks of idle consumers and of many followers, measured small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.consume import idle
from benchmarks.log.followed import followed


@pytest.mark.slow
def test_idle_processes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a partition, and takes some of a core (DESIGN-LOG §14)."""
    monkeypatch.setattr(idle, "_SETTLED_S", 0.0)
    assert 0 <= idle.idle(f"sqlite:///{tmp_path / 'log.db'}", tmp_path, 2, 0.5) < 2


@pytest.mark.slow
def test_followers_of_a_served_log_are_measured(tmp_path: Path) -> None:
    """Each message reaches each, and the server takes some of a core (DESIGN-LOG §12, L8)."""
    told: dict[str, Any] = {}
    followed(tmp_path, [2], 0.5, lambda name, _, found: told.update({name: found}))
    assert set(told) == {"2 followers"}
    assert 0 < told["2 followers"]["median_s"] < 60
