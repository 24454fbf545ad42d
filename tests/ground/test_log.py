"""The events of commands, as they are written."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from _rifl_ground.log import get_logger, log_to_stderr

log_to_stderr({how})

def fail(token):
    raise ValueError("a reason")

try:
    fail("kept " + "secret")
except ValueError:
    get_logger("a").exception("it_failed", place=7)
"""


def _written(how: str) -> str:
    command = [sys.executable, "-c", _PROGRAM.format(how=how)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_a_traceback_shows_no_local_variables() -> None:
    """They may be secrets; structlog's own configuration shows them where rich is installed."""
    for how in ("", "as_json=True"):
        written = _written(how)
        assert "it_failed" in written
        assert "ValueError: a reason" in written
        assert "kept secret" not in written
