"""Rows of unknown outcome, settled by the service's own tables (DESIGN §8)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import rifl.spark
from rifl.spark import PlanError
from tests.spark.conftest import METHOD, BankProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ROWS = 60


def test_a_job_whose_plain_server_was_killed_can_be_finished(spark: Any, tmp_path: Path) -> None:
    """What ran is told apart from what did not by a query of the service's effects; sent again
    under the session, each row has its effect once (DESIGN §8)."""
    store = f"sqlite:///{tmp_path}/rifl.db"
    bank = BankProcess(tmp_path, "--store", store, "--pause", "0.02")

    def strike() -> None:
        bank.until_effects(5)
        bank.kill()
        bank.start()

    striker = threading.Thread(target=strike)
    given: dict[str, Any] = {
        "target": bank.target,
        "method": METHOD,
        "key": "reference",
        "session": "daily",
    }
    frame = spark.range(_ROWS, numPartitions=2).selectExpr(
        "concat('r', id) as reference", "'alice' as account", "id as cents"
    )
    try:
        striker.start()
        dead = rifl.spark.write(frame, **given)
        striker.join()
        unknown = {row.reference for row in dead.collect() if row.rifl_outcome == "unknown"}
        assert unknown == {row.reference for row in dead.collect()}
        booked = bank.effects()
        assert sum(name in booked for name in unknown) > 0
        bank.kill()
        ledger = spark.createDataFrame([(name,) for name in booked], "reference string")
        looked = dead.join(
            ledger.withColumn("ran", ledger.reference.isNotNull()), "reference", "left"
        )
        looked = looked.na.fill(False, ["ran"])
        both = looked.unionAll(looked.withColumn("ran", ~looked.ran))
        settling: dict[str, Any] = {"executed": "ran", "who": "a test", "why": "the bank's file"}
        with pytest.raises(PlanError, match="something else"):
            rifl.spark.settle(both, store, **settling)
        told = rifl.spark.settle(looked, store, **settling)
        ran = len(unknown & set(booked))
        assert told.get("executed", 0) == ran
        assert told.get("not-executed", 0) == len(unknown) - ran
        bank.start()
        assert rifl.spark.write(frame, **given).count() == 0
        assert bank.effects() == {f"r{number}": 1 for number in range(_ROWS)}
    finally:
        bank.close()
