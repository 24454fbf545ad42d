"""Calls in a stream, and writes within ``foreachBatch``, by their names (DESIGN §8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import rifl.spark
from rifl.spark import PlanError
from tests.spark.conftest import METHOD, SLOW_S, BankProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ROWS = 10


def _source(directory: Path, name: str, files: range) -> None:
    """Add files, of which a micro-batch takes one each."""
    directory.mkdir(exist_ok=True)
    for file in files:
        lines = [
            json.dumps({"reference": f"{name}{file}-{row}", "account": "alice", "cents": row})
            for row in range(_ROWS)
        ]
        pending = directory / f".{file}"
        pending.write_text("\n".join(lines) + "\n")
        pending.rename(directory / f"{file}.json")


def _stream(spark: Any, directory: Path) -> Any:
    return (
        spark.readStream.schema("reference string, account string, cents bigint")
        .option("maxFilesPerTrigger", "1")
        .json(str(directory))
    )


def _run(frame: Any, checkpoint: Path, book: Callable[[Any, int], None] | None = None) -> None:
    """Run a query over all there is, to its end; raises how it failed."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.format("noop") if book is None else writer.foreachBatch(book)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(SLOW_S))


def _given(bank: BankProcess, **more: Any) -> dict[str, Any]:
    return {"target": bank.target, "method": METHOD, "key": "reference", **more}


def _renamed(frame: Any, prefix: str) -> Any:
    return frame.selectExpr(f"concat('{prefix}', reference) as reference", "account", "cents")


def test_a_micro_batch_of_foreach_batch_that_runs_again_repeats_nothing(
    spark: Any, bank: BankProcess, tmp_path: Path
) -> None:
    """The sink, ``write`` and ``call`` count once in each micro-batch, whatever fails after
    them; without a name, or with another number, none of them sends a row (DESIGN §8)."""
    _source(tmp_path / "input", "f", range(2))
    failures = [1]

    def save(frame: Any, **more: Any) -> None:
        frame.write.format("rifl").options(**_given(bank, **more)).mode("append").save()

    def book(frame: Any, number: int) -> None:
        save(_renamed(frame, "save-"), name="save", batchId=number)
        numbered = _given(bank, name="write", batch_id=number)
        assert rifl.spark.write(_renamed(frame, "write-"), **numbered).isEmpty()
        called = rifl.spark.call(_renamed(frame, "call-"), **_given(bank, name="call"))
        assert called.where("reply.entry > 0").count() == _ROWS
        # The same rows by another name are other calls, and in another session the same.
        save(_renamed(frame, "save-"), name="again")
        save(
            frame.selectExpr("'once' as reference", "'alice' as account", "1L as cents"),
            session="payments",
        )
        if number in failures:
            failures.remove(number)
            raise RuntimeError("this micro-batch was meant to fail")

    rows = _stream(spark, tmp_path / "input")
    with pytest.raises(PySparkException, match="meant to fail"):
        _run(rows, tmp_path / "checkpoint", book)
    _run(rows, tmp_path / "checkpoint", book)
    names = [f"f{file}-{row}" for file in range(2) for row in range(_ROWS)]
    assert bank.effects() == {
        **{f"{how}-{name}": 1 for how in ("write", "call") for name in names},
        **{f"save-{name}": 2 for name in names},
        "once": 1,
    }

    def unnamed(frame: Any, number: int) -> None:
        save(_renamed(frame, "unnamed-"))

    with pytest.raises(PySparkException, match="Nothing was sent"):
        _run(rows, tmp_path / "unnamed", unnamed)

    def misnumbered(frame: Any, number: int) -> None:
        save(_renamed(frame, "unnamed-"), name="save", batchId=number + 1)

    with pytest.raises(PySparkException, match="batchId is 1, and this runs in micro-batch 0"):
        _run(rows, tmp_path / "misnumbered", misnumbered)
    assert bank.effects("unnamed-").total() == 0


def test_calls_of_a_stream_have_names_and_begin_when_they_have_rows(
    spark: Any, bank: BankProcess, tmp_path: Path
) -> None:
    """Two calls of one method are two; one whose branch had no rows at first, and then some,
    goes on (DESIGN §8)."""
    early, late = tmp_path / "early", tmp_path / "late"
    _source(early, "e", range(2))
    _source(late, "l", range(0))
    for given, said in (({}, "has a name"), ({"name": "n", "batch_id": 0}, "tells its micro-b")):
        with pytest.raises(PlanError, match=said):
            rifl.spark.call(_stream(spark, early), **_given(bank, **given))
    twice = _stream(spark, early)
    for name in ("first", "second"):
        twice = rifl.spark.call(
            twice,
            **_given(bank, name=name, reply=name, request=["reference", "account", "cents"]),
        )
    branch = rifl.spark.call(_stream(spark, late), **_given(bank, name="branch"))
    both = twice.select("reference", "first.entry").unionAll(
        branch.select("reference", "reply.entry")
    )
    _run(both, tmp_path / "checkpoint")
    _source(late, "l", range(1))
    _run(both, tmp_path / "checkpoint")
    _source(late, "l", range(1, 2))
    _run(both, tmp_path / "checkpoint")
    assert bank.effects("e") == {f"e{file}-{row}": 2 for file in range(2) for row in range(_ROWS)}
    assert bank.effects("l") == {f"l{file}-{row}": 1 for file in range(2) for row in range(_ROWS)}
