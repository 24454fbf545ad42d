"""The streaming sink under real Spark and real kills (DESIGN §8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import METHOD, SLOW_S, BankProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def _started(frame: Any, bank: BankProcess, tmp_path: Path, mode: str, **trigger: Any) -> Any:
    return (
        frame.writeStream.format("rifl")
        .option("target", bank.target)
        .option("method", METHOD)
        .option("key", "reference")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode(mode)
        .trigger(**trigger)
        .start()
    )


def test_a_batch_of_a_stream_reports_and_closes_late(
    spark: Any, bank: BankProcess, tmp_path: Path
) -> None:
    """Sessions of past batches are closed, the last one is open, counts add up (DESIGN §8)."""
    source = tmp_path / "input"
    source.mkdir()
    for file in range(3):
        line = {"reference": f"s{file}", "account": "alice", "cents": file}
        (source / f"{file}.json").write_text(json.dumps(line) + "\n")
    rows = (
        spark.readStream.schema("reference string, account string, cents bigint")
        .option("maxFilesPerTrigger", "1")
        .json(str(source))
    )
    query = _started(rows, bank, tmp_path, "append", availableNow=True)
    assert query.awaitTermination(int(SLOW_S))
    assert bank.effects() == {"s0": 1, "s1": 1, "s2": 1}
    clients = (
        spark.read.format("rifl-records")
        .option("store", f"sqlite:///{tmp_path}/rifl.db")
        .option("table", "clients")
        .load()
        .where("session_state = 'open'")
        .collect()
    )
    assert [row.session.rpartition("#")[2] for row in clients] == ["3"]
    calls = spark.read.format("rifl-records").load(f"sqlite:///{tmp_path}/rifl.db")
    kept = calls.groupBy("method", "outcome", "code").count().collect()
    assert [tuple(row) for row in kept] == [(METHOD, "executed", "OK", 1)]
