"""A real Redis: a process of its own in a directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from chaos.ports import free_port
from chaos.programs import program

__all__ = ["RedisServer", "redis_answers", "redis_executable"]

_START_S = 60.0


def redis_executable() -> str:
    """Find the redis-server; raises ``NotInstalled``."""
    return program("redis-server", target="redis-server")


def redis_answers(client: Any) -> bool:
    """Whether a server answers this client."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


class RedisServer:
    """A server on 127.0.0.1, as durable as Redis gets unless told otherwise.

    ``environment``: added to that of the process.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, **settings: str
    ) -> None:
        self.directory = directory
        self._environment = {**os.environ, **(environment or {})}
        self.settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            **settings,
        }
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers; RuntimeError if it does not."""
        arguments = [redis_executable(), "--port", str(self.port), "--bind", "127.0.0.1"]
        arguments += ["--dir", str(self.directory), "--daemonize", "no"]
        for name, value in self.settings.items():
            arguments += [f"--{name}", *value.split(" ")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                arguments, stdout=log, stderr=log, env=self._environment
            )
        end, pause = time.monotonic() + _START_S, threading.Event()
        with self.client() as client:
            while not redis_answers(client):
                if time.monotonic() > end:
                    raise RuntimeError((self.directory / "log").read_text()[-2000:])
                pause.wait(0.005)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it, by default as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(10)
            self._process = None

    def suspend(self) -> None:
        """Stop it from running, as a network partition would."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._running().send_signal(signal.SIGCONT)

    def client(self) -> Any:
        """Return a client of the caller's own."""
        return redis.Redis(port=self.port, socket_timeout=5)

    def url(self, **options: Any) -> str:
        """Return the store's URL with these options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis://127.0.0.1:{self.port}/0" + (f"?{query}" if query else "")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("it does not run")
        return self._process
