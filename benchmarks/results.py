"""``benchmarks/results.json``: every figure, each with when, where and of what code it is.

A run replaces the figures it measured and leaves the others, so that the whole can be
measured in parts.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Results"]

RESULTS = Path("benchmarks/results.json")
_PACKAGES = (
    "rifl", "grpcio", "protobuf", "bitarray", "redis", "psycopg", "aws_lambda_powertools", "dbos"
)  # fmt: skip


class Results:
    """The file, read at the start and written after every figure. One thread, one run."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path
        self._content: dict[str, Any] = {
            "figures": {}, "scale": {}, "simulated": {}, "stores": {}, "overload": {}
        }  # fmt: skip
        if path.exists():
            self._content |= json.loads(path.read_text())

    def figures(self) -> dict[str, Any]:
        """Return all compared figures by name."""
        return dict(self._content["figures"])

    def scale(self) -> dict[str, Any]:
        """Return all scale figures by name: of one server, its stores, and in virtual time."""
        content = self._content
        return {**content["scale"], **content["stores"], **content["simulated"]}

    def overload(self) -> dict[str, Any]:
        """Return what was found under overload, by case and then by side."""
        return dict(self._content["overload"])

    def put(self, section: str, name: str, figure: dict[str, Any], order: Iterable[str]) -> None:
        """Keep a figure, in place of an older one of that name, and write the file.

        ``order`` has all names there are; a figure that is none of them goes.
        """
        self._content["machine"] = _machine()
        self._content["versions"] = _versions()
        found = self._content[section] | {name: {**figure, **_now()}}
        self._content[section] = {name: found[name] for name in order if name in found}
        self._path.write_text(json.dumps(self._content, indent=1) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _now() -> dict[str, Any]:
    revision = ""
    # A machine without git has a tree without a revision.
    if git := shutil.which("git"):
        revision = subprocess.run(
            [git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": revision,
        "load": round(os.getloadavg()[0], 1),
    }
