"""A replica, a witness and a log engine belong to the process that made them (DESIGN §5)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_a_group_is_made_of_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    """Every use is ForkedProcess there, and closing it does nothing to the parent's."""
    forked = subprocess.run(
        [sys.executable, "-m", "tests.curp.replica.forking", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = forked.stdout.splitlines()
    assert lines[:1] == ["12 of 12 refused"], forked.stderr
    assert lines[1:] == ["standby"], forked.stderr
