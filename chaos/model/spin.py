"""Runs spin and what it generates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Self

from chaos.model.searches import MODEL, AnySearch
from chaos.programs import program

__all__ = ["Found", "Model"]

_DEPTH = 100_000


class Found(NamedTuple):
    """What a search found: whole without an error, or the way to one.

    ``trail``: the steps to the error, readable; empty if there is none.
    """

    states: int
    seconds: float
    error: str
    trail: str


class Model:
    """A model's programs, compiled once into a directory that goes with the object.

    ``search`` may be called from several threads: each search runs in a process of its
    own. Raises ``NotInstalled``, and ``RuntimeError`` with the tools' words if they fail.
    """

    def __init__(self, model: Path = MODEL) -> None:
        self._spin = program("spin", target="spin")
        self._compiler = program("cc", target="spin")
        self._directory = tempfile.TemporaryDirectory(prefix="rifl-model-")
        self._path = Path(self._directory.name)
        # Beside its programs: they look for it there when they print a trail.
        shutil.copy(model, self._path)
        self._run([self._spin, "-a", model.name], self._path)
        self._programs: dict[bool, Path] = {}

    def close(self) -> None:
        """Remove the programs."""
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(self, *, liveness: bool) -> Path:
        """Compile the program for one kind of search; later calls return the same."""
        if liveness not in self._programs:
            compiled = self._path / ("liveness" if liveness else "safety")
            # Reversed, the reader comes late, when there is something to be read.
            kind = ["-DNFAIR=3"] if liveness else ["-DSAFETY", "-DNOCLAIM", "-DREVERSE"]
            command = [self._compiler, "-O1", "-w", "-DCOLLAPSE", *kind, "-o", str(compiled)]
            self._run([*command, "pan.c"], self._path)
            self._programs[liveness] = compiled
        return self._programs[liveness]

    def search(
        self, search: AnySearch, *, liveness: bool = False, timeout_s: float = 600.0
    ) -> Found:
        """Search all states; stops at the first error.

        With ``liveness``, for a run under weak fairness in which a caller is never
        answered. Raises ``TimeoutError`` when it takes too long: nothing is known then.
        """
        program = self.compile(liveness=liveness)
        flags = ["-a", "-f"] if liveness else ["-E"]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self._path) as name:
            output = self._run(
                [str(program), *flags, f"-m{_DEPTH}", "-w22"],
                Path(name),
                search.settings(),
                timeout_s,
            )
            seconds = time.monotonic() - began
            states = re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
            errors = re.search(r"errors: (\d+)", output)
            if states is None or errors is None or "max search depth too small" in output:
                raise RuntimeError(f"the search did not end:\n{output}")
            if errors[1] == "0":
                return Found(int(states[1]), seconds, "", "")
            error = re.search(r"^pan:\d+: (.*?)(?: \(at depth.*)?$", output, re.MULTILINE)
            trail = self._run([str(program), "-C"], Path(name), search.settings(), timeout_s)
            return Found(int(states[1]), seconds, error[1] if error else output, trail)

    def _run(
        self,
        command: list[str],
        directory: Path,
        settings: dict[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - spin, the compiler, and what they made
                command,
                cwd=directory,
                env={**os.environ, **(settings or {})},
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError(f"{command[0]} took longer than {timeout_s} s") from expired
        if done.returncode and settings is None:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout
