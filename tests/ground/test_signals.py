"""Signals that end what a command does, wherever its main thread is (DESIGN §4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PROGRAM = """
import signal, sys
from _rifl_ground.signals import until_signal

def at(step):
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename.endswith("threading.py") and seen < step:
            seen += event == "line"
            if seen == step:
                signal.raise_signal(signal.SIGTERM)
        return trace

    return trace

for step in range(1, 30):
    with until_signal() as stopped:
        sys.settrace(at(step))
        found = stopped.wait(0.01) or stopped.wait(0.01)
        sys.settrace(None)
        if not found and step == 1:
            signal.raise_signal(signal.SIGTERM)
            found = stopped.wait(60)
    print(step, flush=True)
"""


def test_a_signal_may_come_at_any_line_of_a_wait() -> None:
    """The wait's lock may be held just then: what is told takes it in another thread."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(step) for step in range(1, 30)]
