"""``make demo-log``: four publishers and three followers of one log, killed again and again.

Publishers commit transactions over two streams, some larger than one append, some left by an
exception first. Followers have their effects in databases of their own. Each is a process that is
killed by SIGKILL and started again, and so is the log's server where it has one (``--log``). In
the end the followers' databases are compared with what was to be published. Exits with 1 if
anything was lost, doubled, torn or reordered.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import IO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import sharedlog
from examples.shared_log.audit import Audit, audit
from examples.shared_log.engines import ENGINES, Engine, running
from examples.shared_log.work import STREAMS, SUBSTREAMS, work_of

__all__ = ["main"]

_ROOT = Path(__file__).parents[2]
_PUBLISHERS = ("north", "east", "south", "west")
# Their names, and the streams that they follow.
_FOLLOWERS = {"stock": "orders", "mail": "orders", "books": "invoices"}
_CALM_S = 0.6
_ENGINE_EVERY = 6
# Messages followed, at least, between a kill and the next one.
_BETWEEN = 20
# Followers that have got nothing for so long get nothing more.
_STUCK_S = 60.0


class _Fleet:
    """The processes: each is started, killed, and started again."""

    def __init__(self, url: str, count: int, directory: Path, complaints: IO[bytes]) -> None:
        self.views = {name: directory / f"{name}.db" for name in _FOLLOWERS}
        self._complaints = complaints
        self._commands = {
            name: ["examples.shared_log.publisher", url, name, str(count)] for name in _PUBLISHERS
        }
        self._commands |= {
            name: ["examples.shared_log.follower", url, name, stream, str(self.views[name])]
            for name, stream in _FOLLOWERS.items()
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # The last publisher begins with the first kill: no run ends without one.
        for name in self._commands:
            if name != _PUBLISHERS[-1]:
                self.start(name)

    def start(self, name: str) -> None:
        """Start a process, by its name."""
        self._processes[name] = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", *self._commands[name]],
            cwd=_ROOT,
            stdout=self._complaints,
            stderr=self._complaints,
        )

    def kill(self, dice: Random) -> None:
        """Kill one of the processes that run, and start it again."""
        running = [name for name, each in self._processes.items() if each.poll() is None]
        name = dice.choice(running)
        self._processes[name].kill()
        self._processes[name].wait()
        self.start(name)
        if _PUBLISHERS[-1] not in self._processes:
            self.start(_PUBLISHERS[-1])

    def look(self) -> bool:
        """Return whether all publishers are done; an error of a process ends the demo."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                raise RuntimeError(f"{name} ended with {process.returncode}")
        ended = [name for name, process in self._processes.items() if process.poll() == 0]
        return {*_PUBLISHERS} <= {*ended}

    def stop(self) -> None:
        """End what runs."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.shared_log", description=__doc__)
    parser.add_argument("--log", choices=sorted(ENGINES), default="sqlite")
    parser.add_argument("--transactions", type=int, default=2000, help="of each publisher")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed")
    options = parser.parse_args(arguments)
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="sharedlog-demo-"))
    try:
        with ExitStack() as stack:
            engine = stack.enter_context(running(options.log, directory))
            complaints = stack.enter_context((directory / "complaints").open("ab"))
            log = stack.enter_context(sharedlog.create(engine.url))
            console.print(f"{log.durability}.", highlight=False)
            for stream in STREAMS:
                log.stream(stream, substreams=SUBSTREAMS)
            try:
                found, kills = _run(console, engine, options, directory, complaints)
            except BaseException:
                console.print((directory / "complaints").read_text()[-3000:], style="red")
                raise
            committed = sum(_committed(log, stream) for stream in STREAMS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _report(console, found, committed, kills)
    wrong = found.lost + found.doubled + found.torn + found.reordered + found.never_published
    return 0 if wrong == 0 and committed == found.published else 1


def _run(
    console: Console,
    engine: Engine,
    options: argparse.Namespace,
    directory: Path,
    complaints: IO[bytes],
) -> tuple[Audit, int]:
    """Let them work while they are killed; what became of it, and how many kills."""
    dice = Random(options.seed)  # noqa: S311 - repeatable, not secret
    count: int = options.transactions
    messages = {
        stream: sum(
            each.stream == stream
            for name in _PUBLISHERS
            for seq in range(1, count + 1)
            for each in work_of(name, seq).messages
        )
        for stream in STREAMS
    }
    whole = sum(messages[stream] for stream in _FOLLOWERS.values())
    fleet = _Fleet(engine.url, count, directory, complaints)
    kills = 0
    try:
        with _progress(console) as progress:
            task = progress.add_task("followed", total=whole)
            followed, grew_s = 0, time.monotonic()
            killed_at = 0
            while followed < whole and time.monotonic() - grew_s < _STUCK_S:
                done = fleet.look()
                time.sleep(_CALM_S)
                if (now := _followed(fleet)) > followed:
                    followed, grew_s = now, time.monotonic()
                progress.update(task, completed=followed)
                if done or now < killed_at + _BETWEEN:
                    # On a slow machine processes would only start. And those that follow what is
                    # published by then may end in peace.
                    continue
                killed_at = now
                if engine.restart is not None and kills % _ENGINE_EVERY == _ENGINE_EVERY - 1:
                    progress.console.print(f"{engine.restart()}", style="dim", highlight=False)
                    kills += 1
                    continue
                fleet.kill(dice)
                kills += 1
    finally:
        fleet.stop()
    views = {fleet.views[name]: stream for name, stream in _FOLLOWERS.items()}
    return audit(_PUBLISHERS, count, views), kills


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _followed(fleet: _Fleet) -> int:
    found = 0
    for path in fleet.views.values():
        if path.exists():
            connection = sqlite3.connect(path, timeout=30)
            try:
                found += connection.execute("SELECT count(*) FROM effect").fetchone()[0]
            except sqlite3.OperationalError:
                # It is being made.
                continue
            finally:
                connection.close()
    return found


def _committed(log: sharedlog.Log, stream: str) -> int:
    """Read a stream to its end, once more."""
    found = 0
    for substream in range(SUBSTREAMS):
        after: sharedlog.Position | None = None
        while messages := log.read(stream, substream, after):
            found += len(messages)
            after = messages[-1].position
    return found


def _report(console: Console, found: Audit, committed: int, kills: int) -> None:
    table = Table(title="The followers' databases, read afterwards")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("messages published", f"{found.published:,}"),
        ("messages in the log", f"{committed:,}"),
        ("messages followed, by three", f"{found.followed:,}"),
        ("lost", f"{found.lost:,}"),
        ("doubled", f"{found.doubled:,}"),
        ("torn transactions", f"{found.torn:,}"),
        ("out of order", f"{found.reordered:,}"),
        ("followed, and never published", f"{found.never_published:,}"),
        ("processes killed", f"{kills:,}"),
        ("longest gap of a follower", f"{found.longest_gap_s:,.2f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    line = {
        "published": found.published,
        "committed": committed,
        "followed": found.followed,
        "lost": found.lost,
        "doubled": found.doubled,
        "torn": found.torn,
        "reordered": found.reordered,
        "kills": kills,
        "longest_gap_ms": round(found.longest_gap_s * 1000),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
