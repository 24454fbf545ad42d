"""Tasks of a query in a process of their own, one write for each line of its input.

``python -m tests.spark.copies`` prints ``ready``, then for each line what became of the write:
``{"executed": ..., "replayed": ...}``, or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow

from rifl.spark._errors import SparkError
from rifl.spark._options import WriteOptions
from rifl.spark._session_names import MicroBatch
from rifl.spark._sink import commit_stream, write_task
from rifl.spark._write_plan import WritePlan

_METHOD = "/bank.v1.Bank/Deposit"


def rows_of(first: int, end: int) -> pyarrow.Table:
    """Return deposits ``r<first>`` and so on."""
    names = [f"r{each}" for each in range(first, end)]
    return pyarrow.table(
        {"reference": names, "account": ["alice"] * len(names), "cents": [1] * len(names)}
    )


def written(job: dict[str, Any]) -> dict[str, Any]:
    """Carry a write out: ``first`` to ``held``, then, after another line, up to ``end``."""
    given = {
        "target": job["target"],
        "method": _METHOD,
        "key": "reference",
        "module": "examples.bank.v1.bank_pb2",
        "batchRows": "1",
        "adopt": job.get("adopt", "false"),
    }
    batch = MicroBatch("spark/q", job["batch"], place=job["place"], run=job["run"])
    first, end = job["first"], job["end"]
    held = job.get("held", end)

    def batches() -> Iterator[pyarrow.RecordBatch]:
        yield from rows_of(first, held).to_batches()
        if held < end:
            sys.stdin.readline()
            yield from rows_of(held, end).to_batches()

    try:
        options = WriteOptions.read(given)
        plan = WritePlan.make(options, rows_of(0, 1).schema, stream=True)
        result = write_task(plan, batches(), batch, "0")
        if job.get("commit", True):
            commit_stream(options, [result], batch.batch)
    except SparkError as error:
        return {"error": str(error)}
    return {"executed": result.counts.executed, "replayed": result.counts.replayed}


def main() -> None:
    """Write until standard input closes."""
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(written(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
