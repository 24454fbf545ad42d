"""Wall clocks of real processes, moved while they run."""

from __future__ import annotations

import dataclasses
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

from chaos.run.faults import Unread, strike
from chaos.run.preloaded import NoCompiler
from chaos.run.redis import RedisProcess
from chaos.run.run import run
from chaos.run.scenario_files import read_all
from chaos.run.strikes import Strike
from chaos.run.wall_clock import WallClock, wall_clocks

# For each line, the time of day, the monotonic clock, and how long three tenths last: a sleep,
# a wait and a lock, each of which sees another clock of the C library, none of them moved.
_PROCESS = """
import sys, threading, time
lock = threading.Lock()
lock.acquire()
for _ in sys.stdin:
    began = time.monotonic()
    time.sleep(0.1)
    threading.Event().wait(0.1)
    lock.acquire(timeout=0.1)
    print(time.time(), time.monotonic(), time.monotonic() - began, flush=True)
"""
_HOURS = 7_200.0
# How far the time of day may seem to be moved on a machine that is busy.
_NEAR_S = 60.0

Ask = Callable[[], tuple[float, float, float]]


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return wall_clocks(["it"], tmp_path)["it"]


@pytest.fixture
def ask(clock: WallClock) -> Iterator[Ask]:
    """Return how far a process's clocks are ahead of ours: wall, monotonic; and its wait."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdin, process.stdout

        def once() -> tuple[float, float, float]:
            print(file=lines[0], flush=True)
            wall, monotonic, waited = map(float, lines[1].readline().split())
            return wall - time.time(), monotonic - time.monotonic(), waited

        yield once


def test_only_the_time_of_day_jumps(clock: WallClock, ask: Ask) -> None:
    """A step forward or back moves time.time() at once, and no monotonic clock, sleep or wait."""
    for step, ahead in ((0.0, 0.0), (_HOURS, _HOURS), (-2 * _HOURS, -_HOURS), (_HOURS, 0.0)):
        reads = clock.reads
        clock.step(step)
        wall, monotonic, waited = ask()
        assert wall == pytest.approx(ahead, abs=_NEAR_S)
        assert monotonic == pytest.approx(0.0, abs=_NEAR_S)
        assert 0.29 < waited < 0.3 + _NEAR_S
        assert clock.reads > reads


def test_a_clock_that_drifts_keeps_what_it_gained(clock: WallClock, ask: Ask) -> None:
    """It gains while it drifts, through a step in between, and stays there once it is right."""
    clock.drift(100_000)
    clock.step(-_HOURS)
    began = time.time()
    wall, _, waited = ask()
    gained = wall + _HOURS
    assert 0.29 < waited < 0.3 + _NEAR_S
    # A thousandfold: at least 290 s for its 0.29 s, and at most for all the time there was.
    assert 290 < gained < 1_000 * (time.time() - began + _NEAR_S)
    clock.drift(-100_000)
    kept, _, _ = ask()
    again, _, _ = ask()
    assert kept >= wall - 0.1
    assert again == pytest.approx(kept, abs=_NEAR_S)


def test_redis_has_a_clock_of_its_own(clock: WallClock, tmp_path: Path) -> None:
    """What scripts over Redis take for the time, ``TIME``, moves; and a restart keeps it."""
    process = RedisProcess(tmp_path)
    process.environment.update(clock.environment)
    clock.step(_HOURS)
    try:
        for _ in range(2):
            process.start()
            with redis.Redis(port=process.port) as client:
                told = client.eval("return redis.call('TIME')[1]", 0)
            assert int(told) - time.time() == pytest.approx(_HOURS, abs=_NEAR_S)
            process.kill()
    finally:
        process.kill()


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a C compiler fails such a scenario, and is told what is missing."""
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(NoCompiler, match="no C compiler 'no-such-compiler -O1' on the PATH"):
        wall_clocks(["it"], tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NoCompiler, match=r"false .*wall_clock.c.* failed"):
        wall_clocks(["it"], tmp_path)
    scenario = read_all()["server-clocks-wrong"]
    result = run(scenario, 1, tmp_path / "run", lambda seconds, answers: None)
    assert "NoCompiler" in "\n".join(result.problems)


def test_a_clock_that_nobody_reads_is_no_fault(clock: WallClock) -> None:
    """A clock that nobody looked at while it was wrong is put right, and the fault failed."""
    fault = Strike(
        at=0.0,
        lasts=0.0,
        kind="clock",
        target="it",
        stream="both",
        toxicity=1.0,
        attributes={"seconds": 7_200},
    )
    deployment: Any = SimpleNamespace(clocks={"it": clock})
    put_right = strike(deployment, fault, "it")
    with pytest.raises(Unread, match="no process read the clock of it"):
        put_right()
    put_right = strike(deployment, fault, "it")
    command = [sys.executable, "-c", "import time; print(time.time())"]
    for ahead in (_HOURS, 0.0):
        told = subprocess.check_output(command, env={**os.environ, **clock.environment})
        assert float(told) - time.time() == pytest.approx(ahead, abs=_NEAR_S)
        put_right()
        put_right = strike(deployment, dataclasses.replace(fault, attributes={"seconds": 0}), "it")
