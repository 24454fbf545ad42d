"""A comparison from end to end: real servers, real calls, a table and a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_part_of_the_benchmark_measures_what_it_names(tmp_path: Path) -> None:
    """``--only`` runs its cases alone: server and client, processes of their own, both judged."""
    out = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", "--only", "redis, to a hand-written guard"),
            *("--callers", "1", "--flavor", "sync", "--pairs", "1", "--seconds", "0.1"),
            *("--out", str(out), "--plots", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert list(figures) == ["sync, 1 caller, redis, to a hand-written guard"]
    (figure,) = figures.values()
    assert figure["calls_per_s"] > 0
    assert figure["client_cpu_us"] > 0
    assert figure["server_cpu_us"] > 0
    assert "<svg" in (tmp_path / "performance-sync.svg").read_text()
