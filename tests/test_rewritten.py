"""Tests that `make test` compiles before the workers of pytest collect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FAILS = "def test_two():\n    two = 1 + 1\n    assert two == 3\n"


def test_what_was_compiled_before_is_what_pytest_runs(tmp_path: Path) -> None:
    """No module is run for it, and pytest finds it: it compiles nothing more."""
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    file, ran = folder / "test_it.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'x')\n{_FAILS}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    # Beside the file, wherever this run has its own.
    environment.pop("PYTHONPYCACHEPREFIX", None)
    command = [sys.executable, "-m", "tests.helpers.rewritten", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=100)
    assert not ran.exists()
    (kept,) = (folder / "__pycache__").iterdir()
    before = kept.stat().st_ino
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(file)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "assert 2 == 3" in done.stdout, done.stdout
    assert ran.exists()
    # One that does not fit is replaced by another file.
    assert kept.stat().st_ino == before
    assert list((folder / "__pycache__").iterdir()) == [kept]
