"""A worker: a process of the benchmark, which is asked by lines and answers by lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

__all__ = ["Worker"]

_ROOT = Path(__file__).parents[2]


class Worker:
    """One ``python -m benchmarks.deliver.<module>``, which says a line when it is ready.

    It ends when its standard input does. A context manager; one thread.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Start it; ``ready`` waits for it, so that several can start at once."""
        self._name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.deliver.{module}", *arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready = ""

    @property
    def ready(self) -> str:
        """What it said when it was ready."""
        if not self._ready:
            self._ready = self._line()
        return self._ready

    def ask(self, line: str) -> str:
        """Have it do something; return what it answers."""
        self.tell(line)
        return self._line()

    def tell(self, line: str) -> None:
        """Have it do something; ``answer`` waits for that."""
        _ = self.ready
        assert self._process.stdin is not None  # noqa: S101 - tells mypy what PIPE means
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Wait for what it answers."""
        return self._line()

    def halt(self) -> None:
        """Stop it where it is."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - tells mypy what PIPE means
        found = self._process.stdout.readline()
        if not found:
            raise RuntimeError(f"{self._name} ended by itself")
        return found.strip()
