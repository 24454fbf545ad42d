"""The processes: each is killed by SIGKILL and started again, behind an address that stays."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from chaos.faulty_path import FaultyPath
from examples.pipeline import billing, rides
from examples.server_process import ServerProcess

__all__ = ["KINDS", "Fleet"]

KINDS = ("rides", "spark", "player", "billing")
_ROOT = Path(__file__).parents[2]
_PATIENCE_S = 300.0
# How often a query may fail: Spark gives a source ten seconds to be there, busy or not.
_FAILURES = 20


class Fleet:
    """The service that is called, the Spark driver, the player, and billing. One thread."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Start them all; the stack's end is theirs."""
        self.rides, self.billing = directory / "rides.db", directory / "billing.db"
        rides.create(self.rides)
        billing.create(self.billing)
        self._paths = {name: stack.enter_context(FaultyPath()) for name in ("rides", "billing")}
        log, here = rides.url(self.rides), "examples.pipeline"
        commands = {
            "rides": (f"{here}.rides", str(self.rides)),
            "billing": (f"{here}.billing", str(self.billing)),
            "player": (f"{here}.player", log, self._paths["billing"].target),
        }
        self._servers = {
            name: stack.enter_context(ServerProcess(*command)) for name, command in commands.items()
        }
        self.spark = SparkDriver(log, directory)
        stack.callback(self.spark.kill)
        for name in KINDS:
            self._start(name)

    @property
    def log_url(self) -> str:
        """The log's."""
        return rides.url(self.rides)

    @property
    def address(self) -> str:
        """Of the service that is called."""
        return self._paths["rides"].target

    def kill(self, name: str) -> None:
        """Kill one, and start it again."""
        if name == "spark":
            self.spark.kill()
        else:
            self._servers[name].kill()
        self._start(name)

    def end(self, name: str) -> None:
        """Let a server finish what it does, and end."""
        self._servers[name].stop()

    def _start(self, name: str) -> None:
        if name == "spark":
            self.spark.start()
            return
        port = self._servers[name].start()
        if name in self._paths:
            self._paths[name].lead_to(port)


class SparkDriver:
    """The driver's process, and its JVM; started again where its query has failed. One thread."""

    def __init__(self, log_url: str, directory: Path) -> None:
        self._command = [sys.executable, "-m", "examples.pipeline.job", log_url, str(directory)]
        self._log, self._checkpoint = directory / "driver.log", directory / "checkpoint"
        self._lines: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        # How often its query had failed.
        self.failures = 0

    @property
    def at_work(self) -> bool:
        """Whether a micro-batch is in progress: begun, and not noted as done."""
        return self._newest("offsets") > self._newest("commits")

    def start(self) -> None:
        """Start it, and wait until its query runs."""
        while True:
            self._lines = queue.Queue()
            with self._log.open("ab") as errors:
                process = self._process = subprocess.Popen(  # noqa: S603 - our own command
                    self._command,
                    cwd=_ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    # It and its JVM are one group, and die together.
                    start_new_session=True,
                )
            threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
            if self._line() == "running":
                return
            self._failed()

    def mend(self) -> None:
        """Start it again if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._failed()
            self.start()

    def finish(self) -> None:
        """Have it take all that is there, and end; started again for as long as its query fails."""
        while True:
            self.mend()
            if self._process is None or self._process.stdin is None:
                raise RuntimeError("the driver was never started")
            try:
                self._process.stdin.write("finish\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                continue
            if self._line() == "done":
                self._process.wait(_PATIENCE_S)
                return

    def kill(self) -> None:
        """SIGKILL, to all of it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _newest(self, kind: str) -> int:
        names = [each.name for each in (self._checkpoint / kind).glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _failed(self) -> None:
        self.kill()
        self.failures += 1
        if self.failures > _FAILURES:
            raise RuntimeError(f"the query fails again and again: {self._tail()}")

    def _line(self) -> str:
        """Return what it says next, nothing once it ended."""
        try:
            return self._lines.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise RuntimeError(f"the driver says nothing: {self._tail()}") from None

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                lines.put(line.strip())
    lines.put("")
