"""The commands of consumers: who has which substream, what is stopped; and their processes."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sharedlog._cli.exits import ExitCode, Refused
from sharedlog._cli.shown import print_json, print_table, print_value
from sharedlog._cli.signals import until_signal
from sharedlog._consumer.consumer import Consumer
from sharedlog._core.consumer.members import Seen, all_consumers, look, resume
from sharedlog._core.consumer.names import CHANGES, hold_name, shard_fence
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.fences import fence_key, number_of
from sharedlog._log.log import Log

_LOOK_S, _PATIENCE_S = 0.1, 30.0
# Before one that died is started again: doubled, up to that, unless it ran for so long.
_SHORTEST_S, _LONGEST_S, _LIVED_S = 1.0, 30.0, 60.0


def consumers(log: Log, arguments: argparse.Namespace) -> int:
    """List the consumers' substreams, or let those go on that were stopped."""
    names = log._run(all_consumers())
    if arguments.resume is not None:
        if arguments.resume not in names:
            raise Refused(f"there is no consumer {arguments.resume!r}", ExitCode.NOT_FOUND)
        print_value(arguments.json, {"resumed": log._run(resume(arguments.resume))})
        return ExitCode.DONE
    rows = [row for name in names for row in _shards(log, name)]
    if arguments.json:
        print_json(rows)
        return ExitCode.DONE
    print_table(
        "",
        ("consumer", "substream", "state", "process", "fence#", "done through", "entries behind#"),
        [
            (
                row["consumer"],
                row["substream"],
                row["state"] + (f": {row['why']}" if row["why"] else ""),
                row["process"] or "",
                str(row["fence"]),
                row["position"] or "",
                str(row["entries_behind"]),
            )
            for row in rows
        ],
    )
    return ExitCode.DONE


def _shards(log: Log, name: str) -> list[dict[str, Any]]:
    """What is known in the log of each; holds follow the store within half a second."""
    seen = log._run(look(name))
    tail = log._engine.tail()
    found = []
    for hold in log.holds(hold_name(name)):
        tag = hold.tag
        if tag.startswith(CHANGES):
            continue
        key = fence_key(shard_fence(name, tag))
        found.append(
            {
                "consumer": name,
                "substream": tag,
                "state": _state(seen, tag),
                "why": seen.stopped.get(tag, ""),
                "process": _process(seen, tag),
                "fence": number_of(log._engine.get((key,))[key]),
                "position": None if hold.position is None else str(hold.position),
                "entries_behind": tail - (hold.lsn - 1 if hold.position is None else hold.lsn),
            }
        )
    return found


def _state(seen: Seen, tag: str) -> str:
    if tag in seen.stopped:
        return "stopped"
    if tag not in seen.owners:
        return "nobody's"
    return "its process is gone" if seen.dead(tag) else "runs"


def _process(seen: Seen, tag: str) -> str | None:
    says = seen.members.get(seen.owners.get(tag, ""))
    if says is None:
        return None
    told = json.loads(says)
    return f"{told['pid']} on {told['host']}"


def run(arguments: argparse.Namespace) -> int:
    """Run a module's consumer, in so many processes, until a signal comes."""
    if arguments.processes < 1:
        raise Refused("--processes are 1 or more", ExitCode.USAGE)
    if arguments.processes > 1:
        command = [sys.executable, "-m", "sharedlog", "run", arguments.consumer, "--child"]
        return supervise(command, arguments.processes)
    with _told_why(arguments.child):
        try:
            consumer = _loaded(arguments.consumer)
        except SystemExit as ended:
            raise Refused(f"{arguments.consumer!r} exits: {ended}", ExitCode.USAGE) from ended
    if arguments.child is not None:
        threading.Thread(target=_close_at_end, args=(consumer,), daemon=True).start()
    with until_signal(consumer._closing), _told_why(arguments.child, LogError):
        consumer.run()
    return ExitCode.DONE


@contextlib.contextmanager
def _told_why(
    end: int | None, kind: tuple[type[Exception], ...] | type[Exception] = Exception
) -> Iterator[None]:
    """Tell who has started this process that none of its kind does better: what is wrong lasts.

    ``end``: of the pipe; None: nobody started it.
    """
    try:
        yield
    except kind as error:
        if end is not None and not isinstance(error, LogUnavailable):
            os.write(end, b"!")
        raise


def supervise(command: Sequence[str], processes: int) -> int:
    """Keep so many processes running; one that dies, or exits, is started again, later and later.

    One that ends well ends them all, and so does one that says that no other does better; its code
    is returned. They end when their standard input does, so that none outlives this process.
    """
    running: list[_Process] = []
    pause_s = _SHORTEST_S
    with until_signal() as stopped:
        try:
            while not stopped.is_set():
                while len(running) < processes:
                    running.append(_Process(command))
                stopped.wait(_LOOK_S)
                ended = [each for each in running if each.process.poll() is not None]
                running = [each for each in running if each.process.returncode is None]
                for each in ended:
                    code, lasts = each.process.returncode, each.lasts()
                    if code == ExitCode.DONE or (lasts and code > 0):
                        return code
                    if stopped.is_set():
                        break
                    if time.monotonic() - each.began_s > _LIVED_S:
                        pause_s = _SHORTEST_S
                    how = f"exited with {code}" if code > 0 else f"died of signal {-code}"
                    sys.stderr.write(
                        f"sharedlog: process {each.process.pid} {how}: "
                        f"another one starts in {pause_s:g} s\n"
                    )
                    stopped.wait(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_S)
        finally:
            _end([each.process for each in running])
            for each in running:
                each.lasts()
    return ExitCode.DONE


class _Process:
    """One that was started."""

    def __init__(self, command: Sequence[str]) -> None:
        """``command``: gets the number of the pipe on which it says that what is wrong lasts."""
        self.began_s = time.monotonic()
        self._says, end = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, str(end)], stdin=subprocess.PIPE, pass_fds=(end,)
            )
        except BaseException:
            os.close(self._says)
            raise
        finally:
            os.close(end)

    def lasts(self) -> bool:
        """Say, once, of one that has ended, whether no other does better."""
        os.set_blocking(self._says, False)
        try:
            return os.read(self._says, 1) == b"!"
        except BlockingIOError:
            # A process that a handler has left behind has the pipe still.
            return False
        finally:
            os.close(self._says)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in running:
        each.terminate()
    for each in running:
        try:
            each.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            # What it does is undone.
            each.kill()
            each.wait()
        if each.stdin is not None:
            each.stdin.close()


def _close_at_end(consumer: Consumer) -> None:
    """Close a consumer once whoever started this process is gone."""
    # Not by ``sys.stdin``, whose lock would be held while this process ends.
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    consumer.close()


def _loaded(target: str) -> Consumer:
    module, colon, name = target.partition(":")
    if not colon:
        raise Refused(f"{target!r} is not MODULE:CONSUMER", ExitCode.USAGE)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise Refused(f"{target!r}: {error}", ExitCode.USAGE) from error
    if not isinstance(found, Consumer):
        raise Refused(f"{target!r} is no sharedlog.Consumer", ExitCode.USAGE)
    return found
