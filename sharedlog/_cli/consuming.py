"""The processes of consumers, as the command runs them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from _rifl_ground.exits import CommandRefused, ExitCode
from sharedlog._cli.signals import until_signal
from sharedlog._consumer.consumer import Consumer
from sharedlog._core.errors import LogError, LogUnavailable, StoreUnavailable
from sharedlog._core.position import Position

_LOOK_S, _PATIENCE_S = 0.1, 30.0
# Before one that died is started again: doubled, up to that, unless it ran for so long.
_SHORTEST_S, _LONGEST_S, _LIVED_S = 1.0, 30.0, 60.0


def run(arguments: argparse.Namespace) -> int:
    """Run a module's consumer, in so many processes, until a signal comes."""
    if arguments.processes < 1:
        raise CommandRefused("--processes are 1 or more", ExitCode.USAGE)
    if arguments.processes > 1:
        command = [sys.executable, "-m", "sharedlog", "run", arguments.consumer]
        if arguments.start is not None:
            # Said once: of a while ago each process has the same moment.
            command += ["--start", _said(arguments.start)]
        return supervise([*command, "--child"], arguments.processes)
    with _told_why(arguments.child):
        try:
            consumer = _loaded(arguments.consumer)
        except SystemExit as ended:
            raise CommandRefused(
                f"{arguments.consumer!r} exits: {ended}", ExitCode.USAGE
            ) from ended
        if arguments.start is not None:
            consumer._begins_at(arguments.start)
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
        if end is not None and not isinstance(error, LogUnavailable | StoreUnavailable):
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


def _said(where: str | datetime | Position) -> str:
    return where.isoformat() if isinstance(where, datetime) else str(where)


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
        raise CommandRefused(f"{target!r} is not MODULE:CONSUMER", ExitCode.USAGE)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise CommandRefused(f"{target!r}: {error}", ExitCode.USAGE) from error
    if not isinstance(found, Consumer):
        raise CommandRefused(f"{target!r} is no sharedlog.Consumer", ExitCode.USAGE)
    return found
