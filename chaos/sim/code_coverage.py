"""Machinery: the share of the cores' code that schedules reach, by coverage.py."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["CORES", "reach"]

_ROOT = Path(__file__).parents[2]
# What is written to be driven by events (DESIGN §2).
CORES = ("rifl/core", "curp/_core", "sharedlog/_core", "lease_server")


def reach(kinds: Sequence[str], runs: int, seed: int) -> Iterator[str]:
    """Run so many schedules of each kind once more, measured; lines of the report.

    In a process of its own: what imports run is code, too, and they are over in this one.
    Raises ``CalledProcessError`` if that fails, a broken promise included.
    """
    with tempfile.TemporaryDirectory(prefix="rifl-chaos-") as directory:
        data, said = f"--data-file={directory}/data", Path(directory) / "said.json"
        sources = ",".join(core.replace("/", ".") for core in CORES)
        simulate = ["-m", "chaos.sim", "--jobs", "1", "--runs", str(runs), "--seed", str(seed)]
        for kind in kinds:
            simulate += ["--deployment", kind]
        _coverage("run", data, f"--source={sources}", *simulate)
        _coverage("json", data, "--omit=*_pb2*", "-q", "-o", str(said))
        files = json.loads(said.read_text())["files"]
    yield f"statements of the cores that {runs} schedules of each kind, measured, reached"
    for core in CORES:
        yield from _core(core, files)


def _core(core: str, files: dict[str, Any]) -> Iterator[str]:
    modules = {
        Path(name).relative_to(core).with_suffix("").as_posix(): found["summary"]
        for name, found in files.items()
        if Path(name).is_relative_to(core) and found["summary"]["num_statements"]
    }
    reached = sum(found["covered_lines"] for found in modules.values())
    there = sum(found["num_statements"] for found in modules.values())
    yield f"  {core}: {reached} of {there} ({100 * reached / there:.0f}%)"
    shares = sorted((found["percent_covered"], name) for name, found in modules.items())
    yield "    " + ", ".join(f"{name} {share:.0f}%" for share, name in shares)


def _coverage(*arguments: str) -> None:
    command = [sys.executable, "-m", "coverage", *arguments]
    subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
