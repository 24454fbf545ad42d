"""One process of a deployment: started, killed, stopped, continued, started again."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["DidNotStart", "Member", "Process"]

_ROOT = Path(__file__).parents[2]
_START_S = 90.0
_WARNING = re.compile(r"\[(warning|error|critical) *\]")
_MOST_WARNINGS = 20


class DidNotStart(RuntimeError):
    """A process did not come up; the text is the last it said."""


class Member(Protocol):
    """What faults strike: a process under its name."""

    # What it is started with from then on, beside this process's own variables.
    environment: dict[str, str]

    @property
    def runs(self) -> bool:
        """Whether it was started, not killed, and has not ended by itself."""
        ...

    def start(self) -> None:
        """Start it; returns when it is ready."""
        ...

    def kill(self) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        ...

    def stop(self) -> None:
        """SIGSTOP: alive, and silent."""
        ...

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        ...


class Process:
    """A command that prints a line when it is ready, and ends when its input closes.

    What it says goes to ``NAME.out`` in ``directory``. It leads a process group of its
    own, which is killed with it. One thread.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        says_ready: bool = True,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = directory / f"{name}.out"
        self.environment = dict(environment or {})
        self._says_ready = says_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started, not killed, and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; returns when it is ready, or raises ``DidNotStart``."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._says_ready else log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                start_new_session=True,
            )
        output = self._process.stdout
        if output is None:
            return
        if not select.select([output], [], [], _START_S)[0] or not output.readline():
            self.kill()
            raise DidNotStart(f"{self.name}: {self.complaints()}")

    def kill(self) -> None:
        """SIGKILL it and what it started; also if it is stopped, or over."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def stop(self) -> None:
        """SIGSTOP: alive, and silent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def limit_files(self, size: int) -> None:
        """Let it write no file beyond this size from now on; -1 lifts that."""
        if self._process is not None:
            hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def close_input(self) -> None:
        """Ask it to end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for it to end by itself; the exit code, None if it does not."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def complaints(self) -> str:
        """What it warned of last, and the end of all it said."""
        if not self.log.exists():
            return ""
        said = self.log.read_text(errors="replace")
        warned = [line for line in said.splitlines() if _WARNING.search(line)]
        return "\n".join([*warned[-_MOST_WARNINGS:], said[-2000:]])
