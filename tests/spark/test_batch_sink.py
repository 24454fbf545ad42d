"""The batch sink under real Spark, beside what people write today (DESIGN §8)."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from pyspark.errors import PySparkException

import rifl.spark
from tests.spark.conftest import METHOD, SLOW_S, BankProcess
from tests.spark.failing import failing_midway, losing_its_shuffle
from tests.spark.naive import naive_sender

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ROWS = 240


def _frame(spark: Any, partitions: int = 3, rows: int = _ROWS) -> Any:
    return spark.range(rows, numPartitions=partitions).selectExpr(
        "concat('r', id) as reference", "'alice' as account", "id as cents"
    )


def _write(frame: Any, bank: BankProcess, **options: Any) -> None:
    given = {"target": bank.target, "method": METHOD, "key": "reference", "batchRows": 20}
    frame.write.format("rifl").options(**{**given, **options}).mode("append").save()


def _expected(rows: int = _ROWS, prefix: str = "") -> dict[str, int]:
    return {f"{prefix}r{number}": 1 for number in range(rows)}


def test_tasks_that_fail_midway_repeat_nothing(
    spark: Any, bank: BankProcess, small_batches: Any, tmp_path: Path
) -> None:
    """Three failed attempts of a task: each row once; the naive sink repeats (DESIGN §8)."""
    # Large rows: Spark's workers hand on 64 KiB at a time, not each row.
    frame = _frame(spark).selectExpr("reference", "rpad('alice', 5000, '!') as account", "cents")
    failing = failing_midway(bank.effects_file, attempts=3)
    lines = tmp_path / "report"
    _write(
        frame.mapInArrow(failing, frame.schema),
        bank,
        report=str(lines),
        metrics=str(tmp_path / "rifl.prom"),
    )
    assert bank.effects("r") == _expected()
    (told,) = [json.loads(line) for line in lines.read_text().splitlines()]
    assert (told["rows"], told["sent"], told["failed"]) == (_ROWS, _ROWS, 0)
    assert told["executed"] + told["replayed"] == _ROWS
    assert told["replayed"] > 0
    assert told["p99_s"] >= told["p50_s"] > 0
    metrics = (tmp_path / "rifl.prom").read_text()
    assert f'rifl_spark_rows_total{{method="{METHOD}"}} {_ROWS}.0' in metrics
    naive = frame.mapInArrow(failing_midway(bank.effects_file, "naive-"), frame.schema)
    naive.foreachPartition(naive_sender(bank.target))
    assert set(bank.effects("naive-")) == set(_expected(prefix="naive-"))
    assert bank.effects("naive-").total() > _ROWS


def test_a_stage_that_is_run_again_repeats_nothing(
    spark: Any, bank: BankProcess, small_batches: Any, tmp_path: Path
) -> None:
    """A lost shuffle has Spark run stages again, with attempts counted anew (DESIGN §8)."""
    local = spark.sparkContext.getConf().get("spark.local.dir")
    frame = _frame(spark).repartition(2, "cents")
    frame = frame.selectExpr("reference", "rpad('alice', 5000, '!') as account", "cents")

    def losing(prefix: str) -> Any:
        seen = tmp_path / f"seen{prefix}"
        task = losing_its_shuffle(bank.effects_file, prefix, local, seen)
        return seen, frame.mapInArrow(task, frame.schema)

    seen, lost = losing("")
    _write(lost, bank)
    # Partition 0 began twice as the first attempt of a stage.
    assert seen.read_text().split().count("0") == 2
    assert bank.effects("r") == _expected()
    seen, lost = losing("naive-")
    lost.foreachPartition(naive_sender(bank.target))
    assert seen.read_text().split().count("0") == 2
    assert set(bank.effects("naive-")) == set(_expected(prefix="naive-"))
    assert bank.effects("naive-").total() > _ROWS


def test_a_job_that_is_run_again_under_its_name_repeats_nothing(
    spark: Any, bank: BankProcess, restored: Any
) -> None:
    """A re-run replays, after a shuffle into other partitions, with AQE on and off; twice
    without a name books twice (DESIGN §8)."""
    for partitions, aqe in ((3, "true"), (2, "false")):
        restored("spark.sql.shuffle.partitions", partitions)
        restored("spark.sql.adaptive.enabled", aqe)
        shuffled = _frame(spark, partitions).repartition("cents")
        _write(shuffled, bank, session="daily-2026-11-20")
        shuffled.foreachPartition(naive_sender(bank.target))
    assert bank.effects("r") == _expected()
    assert set(bank.effects("naive-").values()) == {2}


def test_tls_with_a_client_certificate_end_to_end(spark: Any, tmp_path: Path) -> None:
    """Files named by options reach driver and workers; without them no row is sent (DESIGN §8)."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ca.issue_cert("bank.internal").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    client = ca.issue_cert("job@example.org", common_name="job")
    client.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    roots = {"tlsRootsFile": str(tmp_path / "ca.pem"), "tlsTargetName": "bank.internal"}
    files = {
        **roots,
        "tlsCertFile": str(tmp_path / "client.pem"),
        "tlsKeyFile": str(tmp_path / "client.key"),
    }
    store = f"sqlite:///{tmp_path}/rifl.db"
    bank = BankProcess(tmp_path, "--store", store, "--tls", str(tmp_path))
    try:
        for options in ({}, roots):
            with pytest.raises(PySparkException, match="could not be asked"):
                _write(_frame(spark, rows=10), bank, timeout="1s", **options)
        assert bank.effects().total() == 0
        with rifl.spark.session(bank.target, "daily", **files):
            for _ in range(2):
                _write(_frame(spark, rows=10), bank, session="daily", **files)
        assert bank.effects() == _expected(10)
    finally:
        bank.close()


def test_a_row_with_a_known_key_and_other_content_fails_the_write(
    spark: Any, bank: BankProcess
) -> None:
    """The user sees the key and the typed reason; nothing is dropped (DESIGN §8)."""
    # One task: each that fails is tried four times, each time by a new process.
    _write(_frame(spark, 1, rows=10), bank, session="daily")
    other = _frame(spark, 1, rows=10).selectExpr("reference", "account", "cents + 1 as cents")
    with pytest.raises(PySparkException) as caught:
        _write(other, bank, session="daily")
    text = str(caught.value)
    assert "PAYLOAD_MISMATCH" in text
    assert "key 'r" in text
    assert bank.effects().total() == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ""}, "no key columns"),
        ({"method": "/bank.v1.Bank/Nope"}, "no method 'Nope'"),
        ({"method": "/bank.v1.Bank/Balance"}, "no field"),
        ({"target": "127.0.0.1:1", "timeout": "1s"}, "could not be asked"),
        ({"metadata.authorization": "hush"}, "environment"),
    ],
)
def test_bad_input_is_an_error_of_the_driver(
    spark: Any, bank: BankProcess, options: dict[str, str], says: str
) -> None:
    """The user of Spark reads what is wrong, before any row was sent (DESIGN §8)."""
    with pytest.raises(PySparkException, match=says):
        _write(_frame(spark, rows=10), bank, **options)
    assert bank.effects().total() == 0


def test_overwrite_is_refused(spark: Any, bank: BankProcess) -> None:
    """Rows are sent: there is nothing to overwrite (DESIGN §8)."""
    writer = _frame(spark, rows=10).write.format("rifl").option("target", bank.target)
    with pytest.raises(PySparkException, match="append"):
        writer.option("method", METHOD).option("key", "reference").mode("overwrite").save()


def test_a_server_killed_mid_batch_costs_nothing(
    spark: Any, tmp_path: Path, small_batches: Any
) -> None:
    """Atomic deposits survive SIGKILL of the service; the naive sink repeats (DESIGN §8)."""
    books = tmp_path / "books.db"
    bank = BankProcess(
        tmp_path,
        *("--store", f"sqlite:///{tmp_path}/rifl.db", "--atomic", str(books), "--pause", "0.002"),
    )

    def booked(prefix: str) -> dict[str, int]:
        with sqlite3.connect(books) as connection:
            found = connection.execute(
                "SELECT reference, count(*) FROM effect WHERE reference GLOB ? GROUP BY 1",
                (f"{prefix}*",),
            )
            return dict(found.fetchall())

    def strike(prefix: str) -> threading.Thread:
        def kill() -> None:
            from tests.helpers.waiting import until

            until(lambda: len(booked(prefix)) >= 30, "rows before the kill", SLOW_S)
            bank.kill()
            bank.start()

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    try:
        striker = strike("r")
        _write(_frame(spark), bank)
        striker.join()
        assert booked("r") == _expected()
        striker = strike("naive-")
        _frame(spark, 2).foreachPartition(naive_sender(bank.target))
        striker.join()
        assert sum(booked("naive-").values()) > _ROWS
    finally:
        bank.close()
