"""The replicated bank's process: how it is stopped (DESIGN §7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.curp.logs import created
from tests.helpers.ports import free_port
from tests.helpers.processes import started

ROOT = Path(__file__).parents[2]
_DEADLINE_S = 60.0
_FORKS = """
import os, signal, time
from examples.replicated_bank.__main__ import signals_taken
came = signals_taken()
ready, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b".")
    while True:
        # Not pause(): a signal just before it is noted, and its handler runs only behind it.
        time.sleep(0.01)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]), came.empty(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print(came.get(timeout=30), flush=True)
"""


def test_a_signal_stops_it(tmp_path: Path) -> None:
    """SIGTERM hands over and ends the process with 0."""
    url, address = created(f"sqlite:///{tmp_path}/bank.log?group=bank"), f"127.0.0.1:{free_port()}"
    arguments = ["--listen", address, "--log", url]
    with started("examples.replicated_bank", *arguments, log=tmp_path / "bank.err") as process:
        assert process.line(_DEADLINE_S) == f"listening {address}"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0


def test_a_forked_child_of_it_is_ended_by_a_signal() -> None:
    """What is for the server does nothing in a child, which has none to stop."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.stdout.split() == [str(int(signal.SIGTERM)), "True", str(int(signal.SIGTERM))], (
        done.stderr
    )
