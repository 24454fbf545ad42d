"""Drivers as processes, which are killed: one, its executors, or their Python workers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Self

__all__ = ["KINDS", "DriverProcess", "environment"]

_ROOT = Path(__file__).parents[2]
# What is killed, and what its command line has.
KINDS = ("driver", "executor", "worker")
_EXECUTOR, _WORKER = b"CoarseGrainedExecutorBackend", b"pyspark.daemon"
_GONE_S = 30.0


class DriverProcess:
    """A driver with these options, started again after each kill. One thread."""

    def __init__(self, *options: str, log: Path, patience_s: float = 1800.0) -> None:
        self._options = options
        self._log = log
        self._patience_s = patience_s
        self._lines: queue.Queue[str] = queue.Queue()
        self._child: subprocess.Popen[str] | None = None
        self._jvm = 0
        # How often it was started because a query had failed.
        self.failures = 0

    def start(self) -> None:
        """Start it, and wait until its queries run; again where a query fails at once."""
        while True:
            self._end()
            self._lines = queue.Queue()
            with self._log.open("ab") as errors:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.nexmark.driver", *self._options],
                    cwd=_ROOT,
                    env=environment(self._log.parent),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    # All that it starts is told by its session.
                    start_new_session=True,
                )
            threading.Thread(target=_read, args=(self._child, self._lines), daemon=True).start()
            said = self._line()
            if said.isdecimal():
                self._jvm = int(said)
                if self._line() == "running":
                    return
            self._failed()

    def kill(self, kind: str, dice: Random) -> bool:
        """Kill one by SIGKILL; the driver is started again. False: there is none of the kind."""
        if kind == "driver":
            os.kill(self._jvm, signal.SIGKILL)
            self.start()
            return True
        found = self._executors() if kind == "executor" else self._workers()
        if not found:
            return False
        try:
            os.kill(dice.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def pause(self) -> None:
        """Have it, and all that it started, stand still until it goes on."""
        # Twice: one of them may have forked meanwhile.
        self._signal(signal.SIGSTOP)
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on; nothing where it never stood still."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid, _, _ in self._all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def mend(self) -> None:
        """Start it again if it has ended: a query of its had failed."""
        if not self.runs:
            self._failed()
            self.start()

    def finish(self) -> None:
        """Have it take all that is there; started again for as long as queries fail."""
        while True:
            self.mend()
            if self._child is None or self._child.stdin is None:
                raise RuntimeError("the driver was never started")
            try:
                self._child.stdin.write("finish\n")
                self._child.stdin.flush()
            except BrokenPipeError:
                continue
            if self._line() == "done":
                return

    def close(self) -> None:
        """End it, and all that it started."""
        self._end()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> str:
        """Return what it says next, nothing once it ended."""
        try:
            return self._lines.get(timeout=self._patience_s)
        except queue.Empty:
            raise RuntimeError(f"the driver says nothing: {self.said}") from None

    def _failed(self) -> None:
        self.failures += 1
        if self.failures > 20:
            raise RuntimeError(f"queries fail again and again: {self.said}")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def said(self) -> str:
        """What it wrote last: the folder of its log goes with its parent process."""
        return self._log.read_text(errors="replace")[-2000:]

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        end = time.monotonic() + _GONE_S
        # Executors and workers end when their other end closes; the rest are killed.
        while found := list(_of_session(child.pid)):
            for pid, _, _ in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                raise RuntimeError(f"these do not end: {found}")
            time.sleep(0.05)

    def _executors(self) -> list[int]:
        return [pid for pid, _, command in self._all() if _EXECUTOR in command]

    def _workers(self) -> list[int]:
        """Return the forks of the daemons, which run tasks."""
        daemons = {pid: parent for pid, parent, command in self._all() if _WORKER in command}
        return [pid for pid, parent in daemons.items() if parent in daemons]

    def _all(self) -> list[tuple[int, int, bytes]]:
        return [] if self._child is None else list(_of_session(self._child.pid))


def environment(folder: Path) -> dict[str, str]:
    """Return what a driver of Spark is told, which may leave something in a folder."""
    return {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_home(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(Path(__file__).parent / "conf"),
        "PYTHONUNBUFFERED": "1",
        # Spark gives each Python that it starts ten seconds: what is imported is compiled once.
        "PYTHONDONTWRITEBYTECODE": "",
    }


def _home(folder: Path) -> Path:
    """Return a home of Spark's without its ``pyspark.zip``, which has nothing compiled.

    Python finds PySpark where it is installed then, compiled, and starts sooner.
    """
    installed = importlib.util.find_spec("pyspark")
    if installed is None or installed.origin is None:
        raise RuntimeError("PySpark is not installed")
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for each in Path(installed.origin).parent.iterdir():
            if each.name != "python":
                (home / each.name).symlink_to(each)
    return home


def _read(child: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    if child.stdout is not None:
        for line in child.stdout:
            lines.put(line.strip())
    lines.put("")


def _of_session(session: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the processes of a session that live: each, its parent and its command line."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # Behind the name, which may have anything: state, parent, group, session.
            state, parent, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                yield int(folder.name), int(parent), (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
