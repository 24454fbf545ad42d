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


_PLAIN = """
import logging, sys
{first}
from _rifl_ground.log import get_logger

logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
log = get_logger("rifl.a")
log.info("not_heard", place=1)
log.warning("it_waits", reason="100 % full", method="m", logger=7, name=None)
log.error("it_failed", error=str(KeyError("x")))
assert ("structlog" in sys.modules) is {there}
"""


def test_without_structlog_a_line_is_the_same() -> None:
    """An event loop is not held up by its import, which takes as long as hundreds of calls."""
    lines = []
    for first in ("", "import structlog"):
        program = _PLAIN.format(first=first, there=bool(first))
        command = [sys.executable, "-c", program]
        lines.append(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    assert lines[0] == lines[1]
    assert lines[0].startswith("WARNING rifl.a event='it_waits' reason='100 % full' method='m'")
