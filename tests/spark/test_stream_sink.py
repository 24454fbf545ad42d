"""The streaming sink under real Spark and real kills (DESIGN §8)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.helpers.processes import Process
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S, BankProcess, spark_environment
from tests.spark.signalled import SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_FILES, _ROWS = 3, 40


class Driver:
    """One launch of the driver after another, over one checkpoint."""

    def __init__(self, bank: BankProcess, directory: Path) -> None:
        self._bank = bank
        self._directory = directory
        self._signals = directory / "signals"
        self._signals.mkdir()
        (self._signals / "effects").symlink_to(bank.effects_file)
        source = directory / "input"
        source.mkdir()
        for file in range(_FILES):
            lines = [
                json.dumps({"reference": f"f{file}-{row}", "account": f"a{row % 7}", "cents": row})
                for row in range(_ROWS)
            ]
            path = source / f"{file}.json"
            path.write_text("\n".join(lines) + "\n")
            os.utime(path, (file, file))  # Spark takes the oldest first

    def noted(self, batch: int) -> bool:
        """Whether Spark noted this micro-batch as committed."""
        return (self._directory / "checkpoint" / "commits" / str(batch)).exists()

    def launch(self, cores: int, partitions: int, aqe: bool, kill_at: str | None = None) -> bool:
        """Run it until it is killed, or ends; whether it ended."""
        pid, hold = self._signals / "driver.pid", self._signals / "hold"
        for file in (pid, hold):
            file.unlink(missing_ok=True)
        if kill_at is not None:
            hold.touch()
            (self._signals / kill_at).touch()
        process = Process(
            "tests.spark.stream_driver",
            *("--target", self._bank.target, "--directory", str(self._directory)),
            *("--cores", str(cores), "--partitions", str(partitions)),
            *("--aqe", str(aqe).lower()),
            log=self._directory / "driver.log",
            env={**spark_environment(), SIGNALS: str(self._signals)},
        )
        try:
            if kill_at == "noted":
                until(lambda: self.noted(1) or not process.alive, "a commit", SLOW_S)
                os.kill(int(pid.read_text()), signal.SIGKILL)
            try:
                return process.line(SLOW_S) == "done"
            except AssertionError:
                assert not process.alive, process.errors()
                return False
        finally:
            process.close()
            if pid.exists():
                gone(int(pid.read_text()))


def gone(pid: int) -> None:
    """Make sure that a driver's JVM does not outlive the test."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of {pid}", SLOW_S)


@pytest.mark.parametrize(
    ("point", "aqe"),
    [
        pytest.param("planning", True, id="before", marks=pytest.mark.long),
        pytest.param("writing", False, id="inside", marks=pytest.mark.long),
        pytest.param("committed", True, id="between-the-commits", marks=pytest.mark.long),
        pytest.param("noted", False, id="after", marks=pytest.mark.long),
    ],
)
def test_a_driver_killed_anywhere_repeats_nothing(
    java: None, bank: BankProcess, tmp_path: Path, point: str, aqe: bool
) -> None:
    """SIGKILL before, inside, after a micro-batch, and between the two commits (DESIGN §8).

    It is started again with other cores, other shuffle partitions and the other AQE,
    after a shuffle: positions mean nothing. The naive query of the same driver, killed
    between what it sent and Spark's commit of it, repeats all of that micro-batch.
    """
    driver = Driver(bank, tmp_path)
    assert not driver.launch(2, 3, aqe, kill_at=point)
    sent = bank.effects("f1-").total()
    stood = {"planning": (0, 0), "writing": (1, _ROWS - 1)}.get(point, (_ROWS, _ROWS))
    assert stood[0] <= sent <= stood[1]
    assert driver.noted(0)
    assert driver.noted(1) == (point == "noted")
    assert driver.launch(3, 5, not aqe)
    expected = {f"f{file}-{row}": 1 for file in range(_FILES) for row in range(_ROWS)}
    assert bank.effects("f") == expected
    naive = bank.effects("naive-")
    assert naive == {f"naive-{name}": 1 + name.startswith("f0-") for name in expected}
    told = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert {line["batch"] for line in told} == set(range(_FILES))
    replayed = {line["batch"]: line["replayed"] for line in told}
    assert replayed[0] == 0
    assert replayed[1] == (0 if point == "noted" else sent)


def _started(
    frame: Any,
    bank: BankProcess,
    tmp_path: Path,
    mode: str,
    options: Mapping[str, str] = {},
    **trigger: Any,
) -> Any:
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    where = {} if "queryName" in options else checkpoint
    return (
        frame.writeStream.format("rifl")
        .option("target", bank.target)
        .option("method", METHOD)
        .option("key", "reference")
        .options(**{**where, **options})
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


def test_a_batch_of_a_stream_reports_closes_late_and_repeats_nothing_when_it_runs_again(
    spark: Any, bank: BankProcess, tmp_path: Path, restored: Any
) -> None:
    """Sessions of past batches are closed, the last one is open, counts add up (DESIGN §8).

    As after a kill between the two commits the last batch is run again, in other partitions.
    """
    source, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    source.mkdir()
    for file in range(3):
        lines = [
            json.dumps({"reference": f"s{file}-{row}", "account": f"a{row}", "cents": file})
            for row in range(4)
        ]
        (source / f"{file}.json").write_text("\n".join(lines) + "\n")
    rows = (
        spark.readStream.schema("reference string, account string, cents bigint")
        .option("maxFilesPerTrigger", "1")
        .json(str(source))
        .repartition("account")
    )

    def replayed(where: Mapping[str, str]) -> list[tuple[int, int]]:
        given = {"report": str(tmp_path / "report"), **where}
        query = _started(rows, bank, tmp_path, "append", given, availableNow=True)
        assert query.awaitTermination(int(SLOW_S))
        told = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
        return [(line["batch"], line["replayed"]) for line in told]

    def forget_commit(directory: Path) -> None:
        for file in ("2", ".2.crc"):
            (directory / "commits" / file).unlink(missing_ok=True)

    assert replayed({}) == [(0, 0), (1, 0), (2, 0)]
    forget_commit(checkpoint)
    restored("spark.sql.shuffle.partitions", 3)
    restored("spark.sql.adaptive.enabled", "false")
    # Platforms name checkpoints by this setting: the sink is told the query's name alone.
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, f"{tmp_path}/./")
    try:
        assert replayed({"queryName": checkpoint.name})[3:] == [(2, 4)]
        shutil.copytree(checkpoint, tmp_path / "copy")
        forget_commit(tmp_path / "copy")
        with pytest.raises(PySparkException, match=r"another checkpoint than .*/copy:"):
            replayed({"queryName": "copy"})
    finally:
        spark.conf.unset(setting)
    assert bank.effects() == {f"s{file}-{row}": 1 for file in range(3) for row in range(4)}
    clients = (
        spark.read.format("rifl-records")
        .option("store", f"sqlite:///{tmp_path}/rifl.db")
        .option("table", "clients")
        .load()
        .where("session_state = 'open'")
        .collect()
    )
    assert [row.session.rpartition("#")[2] for row in clients] == ["3"]

    def kept() -> list[tuple[Any, ...]]:
        # Anew each time: Spark would keep what one frame has shuffled.
        calls = spark.read.format("rifl-records").load(f"sqlite:///{tmp_path}/rifl.db")
        groups = calls.groupBy("method", "outcome", "code").count()
        return [tuple(row) for row in groups.collect()]

    # A closed session's records go with the server's next round.
    until(
        lambda: kept() == [(METHOD, "executed", "OK", 4)],
        "only the open session's records are left",
        SLOW_S,
    )
