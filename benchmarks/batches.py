"""The cost of a batch's row at the server: ``python -m benchmarks.batches``.

Batches of 500 keyed rows go into a trivial handler through the server's own behavior,
without gRPC around it; counted is the processor time of the whole process (the store's
threads included), the median and the best of 60 batches. One line of JSON a case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

import grpc

from rifl._server import Deduplicator
from rifl._server.sync import SyncShell, unary_behavior
from rifl._wire.envelope import encode_batch
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicy
from rifl.v1 import rifl_pb2

__all__ = ["main", "measure"]

_METHOD = "/benchmark.Rows/Put"
_REQUEST = b"x" * 40


class _Context:
    """As much of gRPC's context as a batch asks for."""

    def __init__(self, header: bytes) -> None:
        self._metadata = (("rifl-batch", "1"), ("rifl-bin", header))

    def invocation_metadata(self) -> Any:
        return self._metadata

    def add_callback(self, callback: Any) -> bool:
        return True

    def time_remaining(self) -> float:
        return 60.0


def measure(url: str, kind: str, *, rows: int = 500, batches: int = 60) -> dict[str, Any]:
    """Return microseconds of processor time a row."""
    keep = rows * (batches + 1)
    with Deduplicator(url, bounds=Bounds(max_keys=keep, max_key_bytes=1 << 30)) as dedup:
        engine = dedup._engine
        grant = dedup._authority.grant()
        header = rifl_pb2.CallHeader(client_id=grant.client_id, token=grant.token, attempt=1)
        context = _Context(header.SerializeToString())
        handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        policy = MethodPolicy.of(kind)
        serve = unary_behavior(SyncShell(engine), _METHOD, policy or MethodPolicy(), handler)
        costs = []
        for batch in range(batches + 1):
            keys = [b"%d-%d" % (batch, row) for row in range(rows)]
            body = encode_batch([_REQUEST] * rows, keys, [])
            began = time.process_time()
            serve(body, context)
            costs.append((time.process_time() - began) / rows)
    # The first one meets the client.
    median, best = statistics.median(costs[1:]), min(costs[1:])
    return {
        "store": url.partition(":")[0],
        "kind": kind,
        "median_us_per_row": round(median * 1e6, 1),
        "best_us_per_row": round(best * 1e6, 1),
        "rows_per_cpu_second": round(1 / median),
        "best_rows_per_cpu_second": round(1 / best),
    }


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description="What a row of a batch costs the server.")
    parser.add_argument("--batches", type=int, default=60)
    batches = parser.parse_args().batches
    with tempfile.TemporaryDirectory() as folder:
        cases = [("memory:", "plain")]
        cases += [(f"sqlite:///{folder}/{kind}.db", kind) for kind in ("idempotent", "plain")]
        for url, kind in cases:
            print(json.dumps(measure(url, kind, batches=batches)))


if __name__ == "__main__":
    main()
