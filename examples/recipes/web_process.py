"""A web server of the recipes as a real process, and requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["post", "running", "serving"]

_ROOT = Path(__file__).parents[2]
_STOP_S = 10.0


@contextlib.contextmanager
def running(
    *arguments: str, environment: Mapping[str, str], listener: socket.socket | None = None
) -> Iterator[None]:
    """Run ``python -m <arguments>`` in a process group of its own; nothing of it is left."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", *arguments],
        cwd=_ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        pass_fds=() if listener is None else (listener.fileno(),),
        start_new_session=True,
    )
    try:
        if listener is not None:
            listener.close()  # its end is then the end of the server
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serving(*arguments: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a web server; yields its URL. ``{fd}`` in an argument is the socket it listens on.

    The socket listens before the server starts, so a first request waits for it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        filled = [argument.format(fd=listener.fileno()) for argument in arguments]
        with running(*filled, environment=environment, listener=listener):
            yield f"http://127.0.0.1:{port}"


def post(url: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Any:
    """POST as JSON; returns the status and the JSON that was answered."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    posted = urllib.request.Request(url, json.dumps(body or {}).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(posted, timeout=30) as answer:  # noqa: S310 - our own URL
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
