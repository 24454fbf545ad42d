"""``python -m benchmarks.scale``: each measurement in a process of its own, into one file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.results import RESULTS, Results


class _Part(NamedTuple):
    """A measurement: a module, its arguments, which of its figures is aimed at what."""

    name: str
    module: str
    arguments: tuple[str, ...]
    aim: str = ""
    at_most: float = 0.0


def _parts() -> Iterator[_Part]:
    yield _Part("a thousand idle clients", "clients", ("--clients", "1000"))
    yield _Part("a million idle clients", "clients", ("--clients", "1000000"), "mib", 512)
    for flavor in ("aio", "sync"):
        by = "stream" if flavor == "aio" else "unary"
        arguments = ("--clients", "100000", "--flavor", flavor)
        yield _Part(f"100,000 leases renewed, {by}", "leases", arguments, "cores", 0.5)
    for together in (4, 16):
        # Channels of one process, which renew together: beside each by itself, in pairs.
        yield _Part(
            f"100,000 leases renewed, unary, {together} together",
            "leases",
            (*arguments, "--together", str(together)),
            "cores",
            0.5,
        )
    yield _Part(
        "start with 100,000 unacknowledged records",
        "startup",
        ("--records", "100000"),
        "first_answer_s",
        2,
    )
    yield _Part("a store of ten million keys", "keys", ("--keys", "10000000"), "opened_s", 2)


def main() -> None:
    """Measure, print, and keep what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console, results = Console(width=160), Results(options.out)
    for part in _parts():
        if options.only not in part.name:
            continue
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.scale.{part.module}", *part.arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        told = ", ".join(f"{name} {value}" for name, value in found.items())
        if part.aim:
            reached = found[part.aim] <= part.at_most
            found |= {"target": {part.aim: part.at_most}, "reached": reached}
            told += f"; {part.aim} at most {part.at_most:g}: {'reached' if reached else 'missed'}"
        results.put("scale", part.name, found, [each.name for each in _parts()])
        console.print(f"{part.name}: {told}")


if __name__ == "__main__":
    main()
