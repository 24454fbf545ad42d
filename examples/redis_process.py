"""A real Redis of the example's own: as durable as Redis gets, gone afterwards."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from chaos.redis_server import redis_executable

__all__ = ["running_redis"]

_START_S = 20.0
# Nothing acknowledged is forgotten: rifl refuses to open a Redis that is set otherwise.
_SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "save": "",
}


@contextlib.contextmanager
def running_redis(directory: Path) -> Iterator[Path]:
    """Run it with its files and its socket in ``directory``; yields the socket."""
    socket = directory / "redis.sock"
    command = [
        redis_executable(),
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--dir",
        str(directory),
    ]
    for name, value in _SETTINGS.items():
        command += [f"--{name}", value]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own command
    try:
        _wait(socket, process, directory / "redis.log")
        yield socket
    finally:
        process.kill()
        process.wait()


def _wait(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    with redis.Redis(unix_socket_path=str(socket)) as client:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(redis.RedisError):
                client.ping()
                return
            threading.Event().wait(0.02)
    raise RuntimeError(f"Redis did not start:\n{log.read_text(errors='replace')}")
