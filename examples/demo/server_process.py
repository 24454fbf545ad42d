"""The bank as a real process that can be killed and started again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["ServerProcess"]

_ROOT = Path(__file__).parents[2]


class ServerProcess:
    """One ``python -m examples.bank`` at a time; each start gets a new port.

    As a context manager it leaves no process behind, whatever happened.
    """

    def __init__(self, books: Path, behind: str) -> None:
        self._command = [sys.executable, "-m", "examples.bank"]
        self._command += ["--books", str(books), "--behind", behind]
        self._process: subprocess.Popen[str] | None = None
        self.kills = 0

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill what is left."""
        self._kill()

    def start(self) -> int:
        """Start it and return its port once it listens."""
        with tempfile.TemporaryFile("w+") as complaints:
            process = self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                cwd=_ROOT,
                stdin=subprocess.PIPE,  # the bank ends when this closes: no orphans
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
            raise RuntimeError(f"the bank did not start:\n{complaints.read()}")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        self._kill()
        self.kills += 1

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
