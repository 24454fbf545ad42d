"""The group's demo, short: what it counts, and that it cleans up (DESIGN §7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rifl
from examples.replicated_bank.load import Load

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("log", ["sqlite", pytest.param("etcd", marks=pytest.mark.long)])
def test_leaders_are_killed_and_nothing_is_lost(tmp_path: Path, log: str) -> None:
    """Exactly once through a leader killed under load; the last line is the count (§7)."""
    flags = ["--seconds", "1", "--callers", "4", "--log", log]
    finished = subprocess.run(
        [sys.executable, "-m", "examples.replicated_bank.demo", *flags],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    counted = json.loads(finished.stdout.splitlines()[-1])
    assert set(counted) == {
        "calls",
        "effects",
        "duplicates",
        "lost",
        "failovers",
        "fast_path_share",
        "longest_pause_ms",
    }
    assert counted["failovers"] >= 1
    assert counted["effects"] > 0
    assert (counted["duplicates"], counted["lost"]) == (0, 0)
    assert counted["fast_path_share"] > 0
    assert list(tmp_path.iterdir()) == [], "the demo left files behind"


def test_the_demo_s_callers_have_the_documented_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retry policy of their own: what they wait for a lost leader, everybody does (§7)."""
    given: dict[str, object] = {}
    connect = rifl.connect

    def noting(targets: list[str], **settings: object) -> object:
        given.update(settings)
        return connect(targets, **settings)  # type: ignore[arg-type]  # what Load gave

    monkeypatch.setattr(rifl, "connect", noting)
    # No thread of it is begun, and nothing is sent.
    Load(["127.0.0.1:1", "127.0.0.1:2"])._channel.close()
    assert given == {"follow_leaders": True}
