"""A standalone Spark cluster on two addresses of this machine, gone when it is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

__all__ = ["cluster", "environment", "require_java"]

_ROOT = Path(__file__).parents[2]
_START_S = 300.0


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of Spark's processes: our Python, our modules."""
    # A user's own configuration could hide the log lines that are waited for.
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    # What the sessions of the books open by: read by driver and executors, in no plan.
    secret = directory / "session-secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
    inherited.pop("RIFL_SESSION_SECRET", None)
    return {
        **inherited,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(_ROOT),
        "RIFL_SESSION_SECRET_FILE": str(secret),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }


def require_java() -> None:
    """End the program, plainly, where there is no Java for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        subprocess.run([java, "-version"], check=True, capture_output=True)  # noqa: S603 - Java
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("Spark needs Java 17 or newer, by JAVA_HOME or on PATH") from None


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Start a master and two workers of one core each; yields the master's address.

    Speculation starts a task's copy on another host only: hence two addresses.
    """
    with contextlib.ExitStack() as stack:
        log = directory / "master.log"
        _start(
            stack,
            directory,
            log,
            "master.Master",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        )
        master = _found(log, "Starting Spark master at ", "spark://")
        for host in ("127.0.0.1", "127.0.0.2"):
            worker_log = directory / f"worker-{host}.log"
            _start(
                stack,
                directory,
                worker_log,
                "worker.Worker",
                *("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", master),
            )
            _found(worker_log, "Successfully registered with master", "")
        yield master


def _start(
    stack: contextlib.ExitStack, directory: Path, log: Path, name: str, *arguments: str
) -> None:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    env = {**environment(directory), "SPARK_HOME": str(home)}
    if "Worker" in name:
        env["SPARK_LOCAL_IP"] = arguments[1]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - Spark's own command
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env
        )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A worker takes its executors with it.
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _found(log: Path, text: str, prefix: str) -> str:
    """Wait until the log says so; returns the word that begins with the prefix."""
    end = time.monotonic() + _START_S
    pause = threading.Event()
    while time.monotonic() < end:
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                words = [word for word in line.split() if word.startswith(prefix)]
                return words[-1]
        pause.wait(0.1)
    raise RuntimeError(f"Spark did not start:\n{log.read_text(errors='replace')[-3000:]}")
