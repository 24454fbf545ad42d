"""A server of the examples as a real process that can be killed and started again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

__all__ = ["ServerProcess"]

_ROOT = Path(__file__).parents[1]


class ServerProcess:
    """One ``python -m <module> <arguments>`` at a time; each start gets a new port.

    The module prints ``listening <port>`` and serves until its standard input
    closes. As a context manager this leaves no process behind, whatever happened.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is left."""
        self._kill()

    @property
    def pid(self) -> int:
        """The process id; raises ``RuntimeError`` if none runs."""
        if self._process is None:
            raise RuntimeError("it does not run")
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit code of one that has ended by itself; None: it runs, or was not started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> int:
        """Start it and return its port once it listens."""
        with tempfile.TemporaryFile("w+") as complaints:
            process = self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                cwd=_ROOT,
                stdin=subprocess.PIPE,  # it ends when this closes: no orphans
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
            assert process.stdout is not None  # noqa: S101 - tells mypy what PIPE means
            words = process.stdout.readline().split()
            if len(words) == 2 and words[0] == "listening":
                return int(words[1])
            self._kill()
            complaints.seek(0)
            raise RuntimeError(f"{self._module} did not start:\n{complaints.read()}")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        self._kill()

    def wait_until_dead(self, timeout: float = 30.0) -> None:
        """Return once it has ended by itself; raises TimeoutExpired if it does not."""
        if self._process is not None:
            self._process.wait(timeout)
            self._kill()

    def stop(self) -> None:
        """Let it finish what runs, and end."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=10)
        self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
