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
from _rifl_ground.signals import until_signal
from sharedlog._consumer.consumer import Consumer
from sharedlog._core.errors import LogError, LogUnavailable, StoreAway
from sharedlog._core.position import Position

_LOOK_S, _PATIENCE_S = 0.1, 30.0
# What a process says on its pipe: its consumer was closed; no other process does better.
_CLOSED, _LASTS = b".", b"!"
# The pause before a crashed one is started again: doubled, up to that, unless it ran so long.
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
        try:
            consumer.run()
        except SystemExit as ended:
            # With 0, no supervisor would start it again.
            raise CommandRefused(f"a handler exits: {ended}", ExitCode.UNAVAILABLE) from ended
    if arguments.child is not None:
        os.write(arguments.child, _CLOSED)
    return ExitCode.DONE


@contextlib.contextmanager
def _told_why(
    end: int | None, kind: tuple[type[Exception], ...] | type[Exception] = Exception
) -> Iterator[None]:
    """Tell the parent process about an error that a restart does not cure.

    ``end``: of the pipe; None: no parent waits for it.
    """
    try:
        yield
    except kind as error:
        if end is not None and not isinstance(error, LogUnavailable | StoreAway):
            os.write(end, _LASTS)
        raise


def supervise(command: Sequence[str], processes: int) -> int:
    """Keep so many processes running; restart one that crashed or exited, after growing pauses.

    Each has a pause of its own. All end, and its code is returned, if one says on its pipe that its
    consumer was closed, or that a restart does not help. They end when their standard input does,
    so that none outlives this process.
    """
    places = [_Place(command) for _ in range(processes)]
    with until_signal() as stopped:
        try:
            while not stopped.is_set():
                for place in places:
                    place.start_if_due()
                stopped.wait(_LOOK_S)
                for place in places:
                    code = place.ended()
                    if code is not None:
                        return code
        finally:
            _end([place.running.process for place in places if place.running is not None])
            for place in places:
                if place.running is not None:
                    place.running.word()
    return ExitCode.DONE


class _Place:
    """One of the processes, and those that are started in its place."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._pause_s = _SHORTEST_S
        self._due_s = 0.0
        self.running: _Process | None = None

    def start_if_due(self) -> None:
        """Start one if none runs, and the pause is over."""
        if self.running is None and time.monotonic() >= self._due_s:
            self.running = _Process(self._command)

    def ended(self) -> int | None:
        """Return the code that ends all; None: it runs, or is started again after a pause."""
        running = self.running
        if running is None or running.process.poll() is None:
            return None
        self.running = None
        code, word = running.process.returncode, running.word()
        if word and code >= 0:
            return code
        now_s = time.monotonic()
        if now_s - running.began_s > _LIVED_S:
            self._pause_s = _SHORTEST_S
        # A handler may exit with 0, too.
        how = f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"
        sys.stderr.write(
            f"sharedlog: process {running.process.pid} {how}: "
            f"another one starts in {self._pause_s:g} s\n"
        )
        self._due_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, _LONGEST_S)
        return None


class _Process:
    """One that was started."""

    def __init__(self, command: Sequence[str]) -> None:
        """``command``: gets the number of the pipe on which it says why it ends."""
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

    def word(self) -> bytes:
        """Return, once, what one that has ended said; empty: nothing."""
        os.set_blocking(self._says, False)
        try:
            return os.read(self._says, 1)
        except BlockingIOError:
            # A process that a handler has left behind has the pipe still.
            return b""
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
    """Close a consumer once the process that started this one has ended."""
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
