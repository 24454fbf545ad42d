"""The streaming sink under real Spark and real kills (DESIGN §8)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.helpers.processes import Process
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S, BankProcess, spark_environment
from tests.spark.signalled import SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_FILES, _ROWS = 5, 60


@pytest.fixture
def slow_bank(tmp_path: Path) -> Iterator[BankProcess]:
    """A bank that takes its time, so that a batch can be interrupted."""
    process = BankProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/rifl.db", "--pause", "0.005")
    yield process
    process.close()


class Driver:
    """One launch of the driver after another, over one checkpoint."""

    def __init__(self, bank: BankProcess, directory: Path) -> None:
        self._bank = bank
        self._directory = directory
        self._signals = directory / "signals"
        self._signals.mkdir()
        source = directory / "input"
        source.mkdir()
        for file in range(_FILES):
            lines = [
                json.dumps({"reference": f"f{file}-{row}", "account": f"a{row % 7}", "cents": row})
                for row in range(_ROWS)
            ]
            (source / f"{file}.json").write_text("\n".join(lines) + "\n")

    def arm(self, point: str) -> None:
        """Have the driver killed at this point."""
        (self._signals / point).touch()

    def batches(self) -> int:
        """How many micro-batches Spark noted as committed."""
        commits = self._directory / "checkpoint" / "commits"
        return len([file for file in commits.glob("*") if file.name.isdecimal()])

    def launch(
        self, cores: int, partitions: int, aqe: bool, strike: Callable[[], Any] | None = None
    ) -> bool:
        """Run it until ``strike`` returns and it is killed, or it ends; whether it ended."""
        pid = self._signals / "driver.pid"
        pid.unlink(missing_ok=True)
        process = Process(
            "tests.spark.stream_driver",
            *("--target", self._bank.target, "--directory", str(self._directory)),
            *("--cores", str(cores), "--partitions", str(partitions)),
            *("--aqe", str(aqe).lower()),
            log=self._directory / "driver.log",
            env={**spark_environment(), SIGNALS: str(self._signals)},
        )
        try:
            assert process.line(SLOW_S) == "started"
            if strike is not None:
                strike()
                os.kill(int(pid.read_text()), signal.SIGKILL)
            try:
                return process.line(SLOW_S) == "done"
            except AssertionError:
                assert not process.alive, process.errors()
                return False
        finally:
            process.close()
            if pid.exists():
                _gone(int(pid.read_text()))


def _gone(pid: int) -> None:
    """Make sure that a driver's JVM does not outlive the test."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of {pid}", SLOW_S)


@pytest.mark.long
def test_a_driver_killed_anywhere_repeats_nothing(
    java: None, slow_bank: BankProcess, tmp_path: Path
) -> None:
    """SIGKILL before, inside and after a micro-batch, and between the two commits.

    Each restart has other cores and shuffle partitions, with AQE and without, after a
    shuffle: positions mean nothing. The naive query of the same driver repeats rows
    (DESIGN §8).
    """
    bank = slow_bank
    driver = Driver(bank, tmp_path)
    assert not driver.launch(2, 3, True, lambda: bank.until_effects(25, "f"))  # inside
    done = bank.effects("f").total()
    driver.arm("committed")  # between the sink's commit and Spark's own
    assert not driver.launch(4, 5, False)
    driver.arm("planning")  # before a micro-batch
    assert not driver.launch(3, 2, True)
    before = driver.batches()
    assert not driver.launch(
        2, 4, False, lambda: until(lambda: driver.batches() > before, "a commit", SLOW_S)
    )
    assert driver.launch(2, 3, True)
    expected = {f"f{file}-{row}": 1 for file in range(_FILES) for row in range(_ROWS)}
    assert done < len(expected)
    assert bank.effects("f") == expected
    naive = bank.effects("naive-")
    assert set(naive) == {f"naive-{name}" for name in expected}
    assert naive.total() > len(expected)
    told = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert {line["batch"] for line in told} == set(range(_FILES))
    assert any(line["replayed"] for line in told)


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


def _stream(spark: Any) -> Any:
    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", "50")
        .load()
        .selectExpr("concat('s', value) as reference", "'alice' as account", "value as cents")
    )


def test_continuous_mode_commits_nothing(spark: Any, bank: BankProcess, tmp_path: Path) -> None:
    """Where Spark would silently lose every row, no epoch is ever committed (DESIGN §8)."""

    def epochs(directory: str) -> int:
        return len(list((tmp_path / "checkpoint" / directory).glob("[0-9]*")))

    query = _started(_stream(spark), bank, tmp_path, "append", continuous="200 milliseconds")
    try:
        until(lambda: epochs("offsets") >= 5, "epochs that might be committed", SLOW_S)
    finally:
        query.stop()
    assert epochs("commits") == 0
    assert bank.effects().total() == 0


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_only_append_mode(spark: Any, bank: BankProcess, tmp_path: Path, mode: str) -> None:
    """Updates and whole tables cannot be sent as rows that happen once (DESIGN §8)."""
    counted = (
        _stream(spark)
        .groupBy("account")
        .count()
        .selectExpr("account as reference", "account", "count as cents")
    )

    def run() -> None:
        query = _started(counted, bank, tmp_path, mode, processingTime="0 seconds")
        try:
            query.awaitTermination(int(SLOW_S))
        finally:
            query.stop()

    with pytest.raises(PySparkException, match=r"(?i)update|append"):
        run()
    assert bank.effects().total() == 0


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
