"""Rows that failed for good, as a DataFrame, and sent again (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl.spark
from rifl.spark import PlanError
from tests.spark.conftest import METHOD, BankProcess
from tests.spark.failing import failing_midway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ROWS, _BAD = 180, 6


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[BankProcess]:
    """A bank whose refusals are no answers that it keeps."""
    store = f"sqlite:///{tmp_path}/rifl.db"
    process = BankProcess(tmp_path, "--store", store, "--unrecorded", "FAILED_PRECONDITION")
    yield process
    process.close()


def _frame(spark: Any) -> Any:
    return spark.range(_ROWS, numPartitions=3).selectExpr(
        "concat('r', id) as reference",
        # Large rows: Spark's workers hand on 64 KiB at a time, not each row.
        f"rpad(if(id < {_BAD}, 'bad-one', 'alice'), 5000, '!') as account",
        "id as cents",
    )


def _references(frame: Any) -> list[str]:
    return sorted(row.reference for row in frame.collect())


def test_write_returns_the_rows_that_failed_and_they_can_be_sent_again(
    spark: Any, refusing: BankProcess, small_batches: Any, tmp_path: Path
) -> None:
    """Task failures included: each row has its effect, or is in the frame, once; sent again
    under the same session those get theirs, and the others no second one (DESIGN §8)."""
    given: dict[str, Any] = {
        "target": refusing.target,
        "method": METHOD,
        "key": "reference",
        "session": "daily",
    }
    bad = [f"r{number}" for number in range(_BAD)]
    frame = _frame(spark)
    failing = frame.mapInArrow(failing_midway(refusing.effects_file), frame.schema)
    dead = rifl.spark.write(failing, **given, report=str(tmp_path / "report"))
    assert _references(dead) == bad
    kept = tmp_path / "kept"
    dead.write.mode("append").parquet(str(kept))
    dead.write.mode("append").parquet(str(kept))
    assert set(refusing.effects()) == {f"r{number}" for number in range(_BAD, _ROWS)}
    back = rifl.spark.dead_letters(spark, str(kept), session="daily")
    assert _references(back) == bad
    assert {(row.rifl_code, row.rifl_session) for row in back.collect()} == {
        ("FAILED_PRECONDITION", "daily")
    }
    Path(f"{refusing.effects_file}.opened").touch()
    assert rifl.spark.write(back, **given).count() == 0
    assert rifl.spark.write(_frame(spark), **given).count() == 0
    assert refusing.effects() == {f"r{number}": 1 for number in range(_ROWS)}


def test_what_write_cannot_do_is_told_at_once(spark: Any, bank: BankProcess) -> None:
    """Streams, other places for dead rows, and closing too early are refused (DESIGN §8)."""
    given: dict[str, Any] = {"target": bank.target, "method": METHOD, "key": "reference"}
    for frame, more, says in (
        (spark.readStream.format("rate").load(), {}, "foreachBatch"),
        (_frame(spark), {"dead_letter": "/x"}, "what write returns"),
        (_frame(spark), {"session": "a", "close_session": True}, "when you have them"),
    ):
        with pytest.raises(PlanError, match=says):
            rifl.spark.write(frame, **given, **more)
    with pytest.raises(PlanError, match="no dead letters"):
        rifl.spark.dead_letters(_frame(spark))
    assert bank.effects().total() == 0
