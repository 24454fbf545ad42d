"""Servers of an interrupted run end with it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.helpers.leftovers import end_leftovers


def test_processes_of_a_run_are_ended_and_no_others(tmp_path: Path) -> None:
    """A run's processes have its TMPDIR, or work below it; also those in sessions of their own."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    wait = ["sleep", "600"]
    started = [
        subprocess.Popen(wait, env={**os.environ, "TMPDIR": str(mine)}),
        subprocess.Popen(wait, cwd=mine, start_new_session=True),
        subprocess.Popen(wait, cwd=other),
    ]
    try:
        started[0].send_signal(signal.SIGSTOP)
        assert end_leftovers(mine) == ["sleep", "sleep"]
        assert [process.wait(20) for process in started[:2]] == [-signal.SIGKILL] * 2
        assert started[2].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
