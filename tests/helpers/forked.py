"""Processes that need not import what they run: forked from one that has imported it all.

A process of ours that runs ``python -m`` spends half a second on imports before its first line,
and the tests start hundreds. :class:`Forked` has what of ``subprocess.Popen`` the tests use: a
process with its own pid, memory and pipes, killed like any other. It is forked from a single
thread, before gRPC has begun anything.

Run as a module this is that one process: it serves requests on the socket whose number it is
given, until the other end is closed.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Self

__all__ = ["Forked"]

_ROOT = Path(__file__).parents[2]
# What the processes of tests have in common. Packages whose parts are imported when they are asked
# for stand here with these parts.
_IMPORTED = (
    "asyncio",
    "sqlite3",
    "structlog",
    "rifl._client",
    "rifl._server",
    "rifl._stores.sqlite",
    "rifl._stores.redis.opening",
    "rifl._stores.postgres.opening",
    "rifl._stores.alchemy",
    "curp._replica",
    "curp._cli.serve",
    "curp._cli.command",
    "curp.witness.__main__",
    "sharedlog._consumer.consumer",
    "sharedlog._engines.sqlite.engine",
    "sharedlog._log.log",
    "sharedlog._target.sync_target",
    "sharedlog._target.aio_target",
    "psycopg",
    "redis",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.dialects.sqlite",
    "aiosqlite",
    "pytest",
    "examples.bank.v1.bank_pb2_grpc",
)
_LENGTH_BYTES = 4


class Forked:
    """``python -m module`` with pipes for its output and, if asked for, its input."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        with_input: bool = False,
        text: bool = False,
    ) -> None:
        """Start it.

        ``arguments``: the module, and what it is given. ``env``: all of its environment, by
        default this process's, with unbuffered output; ``stderr``: by default this process's.
        ``text``: its output is read as text.
        """
        self.returncode: int | None = None
        # Of the one that learns how it ended: several threads may ask.
        self._taking = threading.Lock()
        output, into_output = os.pipe()
        self.stdout: IO[Any] = os.fdopen(output, "r" if text else "rb")
        self.stdin: IO[bytes] | None = None
        if with_input:
            given, into_input = os.pipe()
            self.stdin = os.fdopen(into_input, "wb")
        else:
            given = os.open(os.devnull, os.O_RDONLY)
        ended, into_ended = socket.socketpair()
        self._ended = ended
        files = [given, into_output, stderr.fileno() if stderr else 2, into_ended.fileno()]
        request = {
            "arguments": list(arguments),
            "env": dict(env or {**os.environ, "PYTHONUNBUFFERED": "1"}),
        }
        try:
            self.pid = _forker().fork(json.dumps(request).encode(), files)
        finally:
            os.close(given)
            os.close(into_output)
            into_ended.close()

    def __enter__(self) -> Self:
        """It runs."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let its pipes go, and wait for its end."""
        if self.stdin is not None:
            self.stdin.close()
        self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, while it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _take(self) -> None:
        # The other end is closed behind it, so that whoever comes later finds it readable, too.
        with self._taking:
            if self.returncode is None:
                self.returncode = int(self._ended.recv(64) or b"-9")

    def __del__(self) -> None:
        """Let the way go on which it is told."""
        if (ended := getattr(self, "_ended", None)) is not None:
            ended.close()


class _Forker:
    """The other end of the process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        number = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.forked", str(number)],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
        )
        theirs.close()
        self._lock = threading.Lock()

    def fork(self, request: bytes, files: list[int]) -> int:
        """Have a process forked; its pid."""
        sent = array.array("i", files)
        with self._lock:
            self._socket.sendmsg(
                [len(request).to_bytes(_LENGTH_BYTES)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)],
            )
            self._socket.sendall(request)
            told = self._socket.recv(64)
        if not told:
            raise RuntimeError(f"what forks ended with {self._process.wait(60)}")
        return int(told)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait(30)


_LOCK = threading.Lock()
_FORKERS: dict[int, _Forker] = {}


def _forker() -> _Forker:
    # Of this process, not of one that a test forks.
    with _LOCK:
        found = _FORKERS.get(os.getpid())
        if found is None:
            _FORKERS.clear()
            found = _FORKERS[os.getpid()] = _Forker()
            atexit.register(found.close)
        return found


class _Children:
    """What runs, and whom to tell how it ended."""

    def __init__(self) -> None:
        self._told: dict[int, socket.socket] = {}

    def add(self, pid: int, told: socket.socket) -> None:
        """Watch one more."""
        self._told[pid] = told

    def reap(self) -> None:
        """Tell of those that have ended."""
        while self._told:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._told.pop(pid) as told, contextlib.suppress(OSError):
                told.sendall(b"%d" % os.waitstatus_to_exitcode(status))

    def forget(self) -> None:
        """In a child: the others are not its own."""
        for told in self._told.values():
            told.close()


def _serve(asked: socket.socket) -> None:
    for module in _IMPORTED:
        # Not every environment has every driver.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    assert threading.active_count() == 1
    # Children share these pages until they write to them.
    gc.collect()
    gc.freeze()
    children = _Children()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Meant for pytest, which ends what it has started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([asked, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            children.reap()
        if asked not in ready:
            continue
        length, files, _, _ = socket.recv_fds(asked, _LENGTH_BYTES, 4)
        if not length:
            return
        request = asked.recv(int.from_bytes(length), socket.MSG_WAITALL)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for one in (asked, woken, wake):
                one.close()
            children.forget()
            _become(json.loads(request), files)
        children.add(pid, socket.socket(fileno=files.pop()))
        for file in files:
            os.close(file)
        asked.sendall(b"%d" % pid)


def _become(request: dict[str, object], files: list[int]) -> NoReturn:
    """In the child: be what was asked for, until it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, file in enumerate(files[:3]):
        os.dup2(file, standard)
    for file in files:
        os.close(file)
    arguments, env = request["arguments"], request["env"]
    assert isinstance(arguments, list)
    assert isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    if env.get("PYTHONUNBUFFERED"):
        unbuffered = io.FileIO(1, "w", closefd=False)
        sys.stdout = io.TextIOWrapper(unbuffered, write_through=True)  # type: ignore[type-var]
    sys.argv[1:] = arguments[1:]
    # That a module is there already is what this is for.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
