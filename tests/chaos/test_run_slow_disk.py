"""Disks of real processes, made slow while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from chaos.run.faults import Unwritten, strike
from chaos.run.preloaded import NoCompiler, preload
from chaos.run.redis import RedisProcess
from chaos.run.run import run
from chaos.run.scenario_files import read_all
from chaos.run.slow_disk import SlowDisk, slow_disks
from chaos.run.strikes import Strike
from chaos.run.wall_clock import wall_clocks

# For each line, what is done to a file, and how long that took.
_PROCESS = """
import os, sqlite3, sys, time
data = os.open(sys.argv[1] + ".db", os.O_RDWR | os.O_CREAT)
end = os.open(sys.argv[1] + ".aof", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
notes = os.open(sys.argv[1] + ".jsonl", os.O_RDWR | os.O_CREAT)
ways = {
    "write": lambda: os.write(data, b"x"),
    "pwrite": lambda: os.pwrite(data, b"x", 0),
    "writev": lambda: os.writev(data, [b"x"]),
    "pwritev": lambda: os.pwritev(data, [b"x"], 0),
    "ftruncate": lambda: os.ftruncate(data, 1),
    "fsync": lambda: os.fsync(data),
    "fdatasync": lambda: os.fdatasync(data),
    "note": lambda: os.write(notes, b"x"),
    "grow": lambda: os.pwrite(data, b"x", os.fstat(data).st_size),
    "append": lambda: os.write(end, b"x"),
    "say": lambda: os.write(2, b"x"),
}
for line in sys.stdin:
    began = time.monotonic()
    ways[line.strip()]()
    print(time.monotonic() - began, flush=True)
"""
_WRITES = ("write", "pwrite", "writev", "pwritev", "ftruncate")
_SYNCS = ("fsync", "fdatasync")
# Each wait is counted, and lasts at least as long as was said; how much longer the machine knows.
_WRITE_MS, _SYNC_MS = 60, 130

Ask = Callable[[str], float]


@pytest.fixture
def disk(tmp_path: Path) -> SlowDisk:
    return slow_disks(["it"], tmp_path)["it"]


@pytest.fixture
def ask(disk: SlowDisk, tmp_path: Path) -> Iterator[Ask]:
    """Return how long a process takes for what is asked of it."""
    said = (tmp_path / "it.out").open("wb")
    with (
        said,
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(tmp_path / "it")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, **disk.environment},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdin, process.stdout

        def once(way: str) -> float:
            print(way, file=lines[0], flush=True)
            return float(lines[1].readline())

        yield once


def test_what_is_written_into_files_takes_longer(disk: SlowDisk, ask: Ask) -> None:
    """Each way of writing waits once, each sync by its own measure; then all is as it was."""
    for way in (*_WRITES, *_SYNCS):
        ask(way)
    assert disk.delayed == 0
    disk.slow_down(_WRITE_MS, 0, _SYNC_MS)
    for count, way in enumerate((*_WRITES, *_SYNCS), 1):
        least = _SYNC_MS if way in _SYNCS else _WRITE_MS
        assert ask(way) >= least / 1000
        assert disk.delayed == count
    disk.slow_down(-_WRITE_MS, 0, -_SYNC_MS)
    for way in (*_WRITES, *_SYNCS):
        ask(way)
    assert disk.delayed == len(_WRITES) + len(_SYNCS)


def test_what_a_file_grows_by_takes_longer_still(disk: SlowDisk, ask: Ask) -> None:
    """Where a file ends so far, also by O_APPEND, a write waits more; elsewhere it does not."""
    ask("append")
    ask("grow")
    disk.slow_down(0, _WRITE_MS, 0)
    for count, way in enumerate(("append", "grow"), 1):
        assert ask(way) >= _WRITE_MS / 1000
        assert disk.delayed == count
    for way in ("pwrite", "pwritev", "fsync"):
        ask(way)
    assert disk.delayed == 2


def test_what_a_process_says_and_notes_is_as_fast_as_ever(disk: SlowDisk, ask: Ask) -> None:
    """Standard streams and the run's own notes are no data, and do not count."""
    disk.slow_down(_WRITE_MS, 0, _SYNC_MS)
    for way in ("say", "note"):
        ask(way)
    assert disk.delayed == 0


def test_delays_add_up(disk: SlowDisk, ask: Ask) -> None:
    """Two faults at a time are as slow as both; each takes away what it brought."""
    disk.slow_down(_WRITE_MS, 0, 0)
    disk.slow_down(_WRITE_MS, 0, 0)
    assert ask("write") >= 2 * _WRITE_MS / 1000
    disk.slow_down(-_WRITE_MS, 0, 0)
    assert ask("write") >= _WRITE_MS / 1000
    ask("fsync")
    assert disk.delayed == 2


def test_sqlite_and_redis_have_slow_disks(disk: SlowDisk, tmp_path: Path) -> None:
    """What they write with is among what waits: a commit, and a command that is kept."""
    disk.slow_down(5, 0, 20)
    command = (
        "import sqlite3; it = sqlite3.connect('it.db'); it.execute('PRAGMA journal_mode=WAL'); "
        "it.execute('CREATE TABLE a (b)'); it.commit(); it.execute('PRAGMA wal_checkpoint')"
    )
    given = {**os.environ, **disk.environment}
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=given, check=True)
    by_sqlite = disk.delayed
    # Page by page into the WAL, and from there into the file; each is synced.
    assert by_sqlite >= 6
    assert time.monotonic() - began >= 0.005 * 4 + 0.020 * 2
    process = RedisProcess(tmp_path)
    preload(process.environment, disk.environment)
    try:
        process.start()
        began_with = disk.delayed
        with redis.Redis(port=process.port) as client:
            began = time.monotonic()
            client.set("a", "b")
            assert time.monotonic() - began >= 0.025
        assert disk.delayed >= began_with + 2
    finally:
        process.kill()


def test_a_disk_that_nobody_writes_to_is_no_fault(disk: SlowDisk, ask: Ask) -> None:
    """A disk to which nothing was written while it was slow is put right; the fault failed."""
    fault = Strike(
        at=0.0,
        lasts=0.0,
        kind="slow",
        target="it",
        stream="both",
        toxicity=1.0,
        attributes={"write_ms": 1, "grow_ms": 0, "sync_ms": 1},
    )
    deployment: Any = SimpleNamespace(slow_disks={"it": disk})
    mend = strike(deployment, fault, "it")
    with pytest.raises(Unwritten, match="it wrote nothing while its disk was slow"):
        mend()
    # A log's disk is that of everybody who has it in a file.
    for target in ("it", "log"):
        mend = strike(deployment, fault, target)
        ask("write")
        mend()
        count = disk.delayed
        ask("write")
        assert disk.delayed == count


def test_a_process_may_have_a_clock_and_a_disk(disk: SlowDisk, tmp_path: Path) -> None:
    """Both libraries are preloaded, each once, and each does what it does."""
    clock = wall_clocks(["it"], tmp_path)["it"]
    environment: dict[str, str] = {}
    for each in (clock, disk, clock):
        preload(environment, each.environment)
    assert len(environment["LD_PRELOAD"].split(":")) == 2
    clock.step(7_200)
    disk.slow_down(1, 0, 1)
    command = "import time; print(time.time()); open('it', 'w').write('x')"
    told = subprocess.check_output(
        [sys.executable, "-c", command], cwd=tmp_path, env={**os.environ, **environment}
    )
    assert float(told) - time.time() == pytest.approx(7_200, abs=60)
    assert disk.delayed >= 1


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a C compiler fails such a scenario, and is told what is missing."""
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(NoCompiler, match="no C compiler 'no-such-compiler -O1' on the PATH"):
        slow_disks(["it"], tmp_path)
    scenario = read_all()["server-disk-slow"]
    result = run(scenario, 1, tmp_path / "run", lambda seconds, answers: None)
    assert "NoCompiler" in "\n".join(result.problems)
