"""``python -m benchmarks.simulated``: a million clients, and a shard in trouble, in virtual time.

``renewals``: of idle clients, in shards of which all lose a zone. ``start``: of a shard, all of
whose clients begin together. The others: every call in one
shard, through what the part is named by. The same seeds find the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.results import RESULTS, Results
from benchmarks.simulated.parts import TRIGGERS, Size, calls, renewals, start

_RENEWALS, _START = "renewals", "all begin together"


def main() -> None:
    """Simulate, print, and keep what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.simulated", description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--clients", type=int, default=Size().clients, help="of a shard")
    parser.add_argument("--servers", type=int, default=Size().servers, help="of a shard")
    parser.add_argument("--calls", type=float, default=Size().calls_s, help="a second, of a shard")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    size = Size(options.clients, options.servers, options.calls)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        _RENEWALS: partial(renewals, options.shards, size),
        _START: partial(start, size),
        **{name: partial(calls, name, size) for name in TRIGGERS},
    }
    console, results = Console(width=160), Results(options.out)
    for name, run in parts.items():
        if options.only in name:
            found = run()
            results.put("simulated", name, found, parts)
            told = ", ".join(f"{each} {value}" for each, value in found.items())
            console.print(f"{name}: {told}")


if __name__ == "__main__":
    main()
