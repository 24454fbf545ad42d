"""A Redis of the deployment's own: as durable as Redis gets, until its files are gone."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path

import redis

from chaos.ports import free_ports
from chaos.redis_server import redis_executable
from chaos.run.process import DidNotStart, Process

__all__ = ["RedisProcess"]

_START_S = 30.0
# Nothing acknowledged is forgotten: rifl refuses to open a Redis that is set otherwise.
_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class RedisProcess(Process):
    """A ``redis-server`` on a port that it keeps."""

    def __init__(self, directory: Path) -> None:
        self._files = directory / "redis"
        (self.port,) = free_ports(1)
        command = [redis_executable(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self._files)]
        for name, value in _SETTINGS.items():
            command += [f"--{name}", value]
        super().__init__("redis", command, directory, says_ready=False)

    def start(self) -> None:
        """Start it with the files there are; returns when it answers."""
        self._files.mkdir(exist_ok=True)
        super().start()
        until = time.monotonic() + _START_S
        pause = threading.Event()
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            while self.runs and time.monotonic() < until:
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    return
                pause.wait(0.02)
        self.kill()
        raise DidNotStart(f"redis: {self.complaints()}")

    def wipe(self) -> None:
        """Remove its files: the next start finds nothing."""
        shutil.rmtree(self._files, ignore_errors=True)
