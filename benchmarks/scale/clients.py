"""The cost of idle clients: ``python -m benchmarks.scale.clients --clients 1000000``.

A process of its own, so that its memory is theirs alone. Each client is granted an id
and makes one call; then all are idle. Then calls of clients picked at random are timed
in the server's own steps, without gRPC around them. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.scale.filling import Filler
from rifl._server import Deduplicator

__all__ = ["main", "measure"]

_ROUNDS = 15
_CALLS = 500


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not say how much memory a process has")


def measure(clients: int) -> dict[str, Any]:
    """Return memory and costs with so many clients."""
    # No client renews meanwhile, however slow the machine is.
    with Deduplicator("memory:", term_s=3600.0) as dedup:
        filler = Filler(dedup)
        gc.collect()
        before = _rss_mib()
        begin = time.perf_counter()
        ids = filler.idle_clients(clients)
        filled_s = time.perf_counter() - begin
        gc.collect()
        mib = _rss_mib() - before
        dice = random.Random(1)  # noqa: S311 - repeatable
        first_us: list[float] = []
        next_us: list[float] = []
        seqs: dict[int, int] = {}
        for _ in range(_ROUNDS):
            some = dice.sample(ids, min(_CALLS, clients))
            for costs in (first_us, next_us):
                began = time.process_time()
                for client_id in some:
                    seqs[client_id] = seq = seqs.get(client_id, 1) + 1
                    filler.call(client_id, seq)
                costs.append((time.process_time() - began) / len(some) * 1e6)
            filler.sweep()
            filler.sweep()
        counted = dedup.statistics()
    return {
        "clients": counted.clients,
        "unacknowledged": counted.unacknowledged,
        "mib": round(mib, 1),
        "bytes_a_client": round(mib * 2**20 / clients),
        "fill_us_a_client": round(filled_s / clients * 1e6, 1),
        # Medians over rounds: the first call of a client that was idle, and the next one.
        "first_call_us": round(statistics.median(first_us), 2),
        "next_call_us": round(statistics.median(next_us), 2),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.clients", description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    print(json.dumps(measure(parser.parse_args().clients)))


if __name__ == "__main__":
    main()
