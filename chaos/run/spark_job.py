"""A Spark driver in the clients' place: what it takes from files is paid once."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chaos.check import History
from chaos.run.clients import Stuck
from chaos.run.process import Process

__all__ = ["SparkJob"]

_ROOT = Path(__file__).parents[2]
_FILES, _ROWS, _ACCOUNTS = 40, 20, 7
_LOOK_EVERY_S = 0.2
_END_S = 240.0


class SparkJob:
    """One streaming query, launched again after each kill; see ``Clients``. One thread.

    A driver gets no answers to single rows: it is told of all of them when it ends well.
    """

    def __init__(self, seed: int, directory: Path, target: str, ledger: Path) -> None:
        """Write the files; nothing runs yet."""
        self._ledger = ledger
        self._began = self._ended = 0.0
        self.answered = 0
        chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._rows = [
            {
                "reference": str(number),
                "account": f"account-{number % _ACCOUNTS}",
                "cents": chance.randint(1, 100),
            }
            for number in range(1, _FILES * _ROWS + 1)
        ]
        home = directory / "spark"
        (home / "input").mkdir(parents=True)
        for file in range(_FILES):
            lines = [json.dumps(row) for row in self._rows[file * _ROWS : (file + 1) * _ROWS]]
            (home / "input" / f"{file:03}.json").write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "chaos.run.driver"]
        self._driver = Process(
            "driver",
            [*command, "--target", target, "--directory", str(home)],
            directory,
            environment={
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(_ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(home / "local"),
            },
        )
        self.members = {"driver": self._driver}

    def start(self) -> None:
        """Start the driver; returns when its query has started."""
        self._began = time.monotonic()
        self._driver.start()

    def look(self) -> None:
        """Count what the ledger has; rows that only it knows of yet."""
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{self._ledger}?mode=ro", uri=True)) as opened,
        ):
            (self.answered,) = opened.execute("SELECT count(*) FROM effect").fetchone()

    def await_more(self, each: int, timeout_s: float, looking: Callable[[], None]) -> None:
        """Wait for so many rows more, or for the end; raises ``Stuck``."""
        self.look()
        wanted = min(self.answered + each, len(self._rows))
        until = time.monotonic() + timeout_s
        pause = threading.Event()
        while self.answered < wanted:
            if not self._driver.runs:
                raise Stuck(f"the driver ended: {self._driver.complaints()}")
            if time.monotonic() >= until:
                raise Stuck(f"the driver did not send {each} rows within {timeout_s:g} s")
            pause.wait(_LOOK_EVERY_S)
            self.look()
            looking()

    def await_silence(self, quiet_s: float, timeout_s: float, looking: Callable[[], None]) -> bool:
        """A job that cannot go on fails, which is not silence."""
        raise NotImplementedError

    def finish(self) -> list[str]:
        """Wait for the end of the job; what was wrong with it."""
        code = self._driver.wait(_END_S)
        self._ended = time.monotonic()
        if code != 0:
            return [f"the driver ended with {code}: {self._driver.complaints()}"]
        return []

    def kill(self) -> None:
        """End it, whatever it does."""
        self._driver.kill()

    def read(self) -> History:
        """Return the rows as calls: asked for at the start, all told when the job ended well.

        The value told is that of the row's first effect, and one that no row has if there
        is none: the rules then find the row lost.
        """
        values: dict[int, list[int]] = {}
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(self._ledger)) as opened,
        ):
            for call, version, total in opened.execute(
                "SELECT call, version, total FROM effect ORDER BY entry DESC"
            ):
                values[call] = [version, total]
        history = History()
        for row in self._rows:
            call, cents = int(str(row["reference"])), int(str(row["cents"]))
            history.start(self._began, call, "add", str(row["account"]), cents, "once")
        if self._ended:
            for row in self._rows:
                call = int(str(row["reference"]))
                history.end(self._ended, call, "executed", "OK", values.get(call, [0, 0]), "")
        return history
