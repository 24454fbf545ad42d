"""Spark Connect: each way to read and write, through one server as a process (DESIGN §8)."""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyspark
import pytest

import sharedlog
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S
from tests.spark.connecting import Connected
from tests.spark.test_stream_sink import gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ROWS = 5
# From then on Spark shows that a write runs within foreachBatch.
_SHOWN = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 3)


def _log_of(directory: Path) -> sharedlog.Log:
    log = sharedlog.create(f"sqlite:///{directory / 'log.db'}")
    for stream in ("orders", "paid", "columns"):
        log.stream(stream, 2)
    return log


def _input(directory: Path, files: int = 2) -> list[str]:
    """Write the files that a query takes one by one; the references of their rows."""
    directory.mkdir()
    for file in range(files):
        rows = [
            json.dumps({"reference": f"f{file}-{row}", "account": "alice", "cents": row})
            for row in range(_ROWS)
        ]
        (directory / f"{file}.json").write_text("\n".join(rows))
    return [f"f{file}-{row}" for file in range(files) for row in range(_ROWS)]


@contextlib.contextmanager
def _books(
    bank: Any, directory: Path, files: int = 2
) -> Iterator[tuple[sharedlog.Log, dict[str, Any], list[str]]]:
    """Make a log and a query's input; with what a driver is told of them, and its references."""
    references = _input(directory / "input", files)
    url = f"sqlite:///{directory / 'log.db'}"
    with _log_of(directory) as log:
        yield log, {"target": bank.target, "log": url, "directory": str(directory)}, references


def _texts(log: sharedlog.Log, stream: str) -> collections.Counter[str]:
    return collections.Counter(each.text for at in range(2) for each in log.read(stream, at))


def _references(log: sharedlog.Log) -> collections.Counter[str]:
    """Count the references of the stream whose messages are Arrow batches."""
    found: collections.Counter[str] = collections.Counter()
    for at in range(2):
        for each in log.read("columns", at):
            rows = pyarrow.ipc.open_stream(each.value).read_all()
            found.update(rows.column("reference").to_pylist())
    return found


@pytest.fixture(scope="module")
def connected(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    """One server for the module."""
    made = Connected(tmp_path_factory.mktemp("connect"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_jobs_and_streams_over_connect_write_each_row_once(
    connected: Connected, tmp_path: Path
) -> None:
    """Jobs by their names, queries, ``call`` and ``write``, of log and service (DESIGN §8)."""
    bank, names = connected.bank, list(map(str, range(_ROWS)))
    with _log_of(tmp_path) as log:
        given = {"target": bank.target, "log": f"sqlite:///{tmp_path / 'log.db'}"}
        told = connected.run("batches", **given, rows=_ROWS)
        assert told == {"dead": ["job-write-0"], "called": _ROWS, "read": sorted(names)}
        assert connected.run("streams", **given, checkpoints=str(tmp_path)) is None
        assert _texts(log, "paid") == dict.fromkeys(names, 1)
    ways = ("batch", "write", "call", "sink", "risk")
    wanted = [f"job-{way}-{name}" for way in ways for name in names]
    wanted.remove("job-write-0")
    assert bank.effects("job-") == dict.fromkeys(wanted, 1)


def _booked(bank: Any, log: sharedlog.Log, references: list[str], by: str) -> None:
    """Each row had each of its effects once."""
    ways = [f"{by}-{how}-" for how in ("save", "write", "call")]
    assert bank.effects(f"{by}-") == {f"{way}{name}": 1 for way in ways for name in references}
    assert _texts(log, "paid") == {f"paid-{name}": 1 for name in references}
    assert _references(log) == dict.fromkeys(references, 1)


def test_each_way_within_foreach_batch_counts_once_over_connect(
    connected: Connected, tmp_path: Path
) -> None:
    """By names and ``batchId``, in both sinks, ``write`` and ``call`` (DESIGN §8)."""
    with _books(connected.bank, tmp_path, 1) as (log, given, references):
        assert connected.run("books", **given, name="within") is None
        _booked(connected.bank, log, references, "within")


@pytest.mark.faults
def test_a_micro_batch_whose_function_was_killed_repeats_nothing_over_connect(
    connected: Connected, tmp_path: Path
) -> None:
    """By names and ``batchId``: as many rows in each micro-batch are lost and doubled by none of
    the sinks, raw and Arrow, ``write`` and ``call`` (DESIGN §8, DESIGN-LOG §16)."""
    with _books(connected.bank, tmp_path) as (log, given, references):
        given["name"] = "killed"
        (tmp_path / "1").touch()
        told = connected.run("books", **given)
        assert "error" in told
        assert not (tmp_path / "1").exists()
        assert connected.run("books", **given) is None
        _booked(connected.bank, log, references, "killed")


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_connect_server_that_is_killed_midway_repeats_nothing(
    java: None, tmp_path: Path, master: str
) -> None:
    """SIGKILL of driver and client with rows in flight, and when all is written, before Spark notes
    it, in one process and in a cluster (DESIGN §8)."""
    killed = Connected(tmp_path, master, pause="0.05")
    try:
        with _books(killed.bank, tmp_path) as (log, given, references):
            given["name"] = "book"
            for point in ("midway", "at the end", "never"):
                killed.start()
                if point == "never":
                    assert killed.run("books", **given) is None
                    break
                (tmp_path / "1.wait").touch()
                killed.begin("books", **given)
                if point == "midway":
                    killed.bank.until_effects(3, "book-save-")
                else:
                    until((tmp_path / "1.reached").exists, "the end of the function", SLOW_S)
                killed.kill()
            _booked(killed.bank, log, references, "book")
    finally:
        killed.close()
        for each in tmp_path.glob("*.pid"):
            gone(int(each.stem))


def test_a_write_that_may_be_one_of_foreach_batch_is_refused_without_name_and_number(
    connected: Connected, tmp_path: Path
) -> None:
    """Where Spark shows it, and where it does not; nothing is written (DESIGN §8)."""
    with _books(connected.bank, tmp_path, 1) as (log, given, references):
        told = connected.run("unnamed", **given)
        refused = {where for where, text in told.items() if "batchId" in text}
        wanted = {f"each {way}" for way in ("sink", "write", "call", "log", "no number")}
        wanted |= {"each log by name"} if _SHOWN else {"batch sink", "batch log"}
        assert refused == wanted, told
        assert not any(told[each] for each in told.keys() - refused)
        # The batch's, or before that those of foreachBatch by a name, which are taken for a job's.
        assert _texts(log, "paid") == dict.fromkeys(references, 1)
        assert connected.bank.effects("eachf").total() == 0
        assert connected.bank.effects("batchf").total() == _ROWS * _SHOWN
