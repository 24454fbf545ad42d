"""The time until a server answers again: ``python -m benchmarks.scale.startup --records 100000``.

A SQLite store is filled with answered calls that no client acknowledged, and its process
is killed. Then servers are started over it: from the start of the process, Python and all
imports, to the first answer of a new client. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rifl
from benchmarks.scale.filling import Filler
from benchmarks.server import METHOD
from rifl._server import Deduplicator
from rifl.v1 import rifl_pb2

__all__ = ["main", "measure"]

_EACH = 200
_STARTS = 15


def _fill(url: str, records: int) -> None:
    """Leave the records in a process that dies, as a crash leaves them."""
    child = os.fork()
    if not child:
        try:
            filler = Filler(Deduplicator(url, default="idempotent", term_s=3600.0))
            filler.unacknowledged(records // _EACH, _EACH)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def _first_answer_s(url: str) -> tuple[float, float]:
    """Return seconds to the port being told, and to the first answer."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.server"),
            *("--store", url, "--kind", "idempotent"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("it was started without a pipe")
        port = int(process.stdout.readline())
        listening_s = time.perf_counter() - began
        with rifl.connect(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
                response_deserializer=rifl_pb2.MetadataEntry.FromString,
            )
            call(rifl_pb2.MetadataEntry(key="k", value=b"v"), timeout=60.0)
        return listening_s, time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def measure(records: int) -> dict[str, Any]:
    """Return medians over starts, with that of an empty store beside it."""
    with tempfile.TemporaryDirectory() as folder:
        full, empty = (f"sqlite:///{Path(folder) / name}.db" for name in ("full", "empty"))
        _fill(full, records)
        pairs = [(_first_answer_s(full), _first_answer_s(empty)) for _ in range(_STARTS)]
        size = sum(file.stat().st_size for file in Path(folder).glob("full.db*"))
    answers = sorted(found[1] for found, _ in pairs)
    return {
        "records": records,
        "starts": _STARTS,
        "first_answer_s": round(statistics.median(answers), 3),
        "longest_s": round(answers[-1], 3),
        "listening_s": round(statistics.median(found[0] for found, _ in pairs), 3),
        "empty_store_s": round(statistics.median(found[1] for _, found in pairs), 3),
        "store_mib": round(size / 2**20, 1),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.startup", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    print(json.dumps(measure(parser.parse_args().records)))


if __name__ == "__main__":
    main()
