"""Real server processes: started, killed by their pid, never left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.helpers.forked import Forked
from tests.helpers.waiting import DEADLINE_S

__all__ = ["Process", "started"]

_ROOT = Path(__file__).parents[2]


class Process:
    """One child running ``python -m module``, and the lines it printed."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        with_input: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._child: Forked | subprocess.Popen[bytes]
            if not env:
                self._child = Forked(
                    [module, *arguments],
                    stderr=errors,
                    with_input=with_input,
                )
            else:
                # Imports may look at it.
                self._child = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    cwd=_ROOT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
                    # An open pipe for those that end when it closes.
                    stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def line(self, deadline_s: float = DEADLINE_S) -> str:
        """Return the next line of its standard output."""
        assert self._child.stdout is not None
        end = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise AssertionError(f"no line within {deadline_s:g} s; {self.errors()}")
                data = os.read(self._child.stdout.fileno(), 4096)
                if not data:
                    code = self._child.wait(DEADLINE_S)
                    raise AssertionError(f"it ended with {code}; {self.errors()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())
        self._child.stdin.flush()

    def close_input(self) -> None:
        """Have it read the end of its input."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
        self._child.wait(DEADLINE_S)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        self._child.send_signal(number)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self._child.send_signal(signal.SIGTERM)
        return self._child.wait(DEADLINE_S)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return self._child.wait(DEADLINE_S)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def errors(self) -> str:
        """The end of its standard error."""
        return self._log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill it if need be and let its pipe go."""
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def started(module: str, *arguments: str, log: Path, with_input: bool = False) -> Iterator[Process]:
    """Start a process and make sure it is gone afterwards."""
    process = Process(module, *arguments, log=log, with_input=with_input)
    try:
        yield process
    finally:
        process.close()
