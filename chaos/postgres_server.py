"""A real PostgreSQL: a cluster of its own in a directory of its own."""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from chaos.ports import free_port
from chaos.programs import NotInstalled

__all__ = ["PostgresServer", "as_user", "postgres_executables", "postgres_user"]

_START_S = 60.0


def postgres_executables() -> Path:
    """Return the directory of the newest initdb and postgres; raises ``NotInstalled``."""
    if found := shutil.which("initdb"):
        # It may be a link to it alone.
        return Path(found).resolve().parent
    for where in ("/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb"):
        versions = sorted(Path("/").glob(where[1:]), key=lambda path: path.parts)
        if versions:
            return versions[-1].parent
    raise NotInstalled("there is no PostgreSQL server: make postgresql installs it")


def as_user() -> list[str]:
    """Return what to begin a command with: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return []
    user = postgres_user()
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def postgres_user() -> pwd.struct_passwd:
    """Return who runs PostgreSQL where root starts it."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is no other user")


class PostgresServer:
    """A server on 127.0.0.1, with the rules of a fresh installation.

    ``environment``: added to that of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, **settings: str) -> None:
        # Each session is a process: what all look up and load, the first one does.
        self._environment = {**os.environ, "LD_BIND_NOW": "1", **(environment or {})}
        self.binaries = postgres_executables()
        self.directory = _directory()
        self._make(self.directory / "data")
        self.port = free_port()
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "shared_preload_libraries": "plpgsql",
            # Goes with the directory, whatever kills the server.
            "dynamic_shared_memory_type": "mmap",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _make(self, data: Path) -> None:
        _run("cp", "-a", _first_cluster(), data)
        # A cluster of its own, by the first bytes of this file; the file's checksum, which then
        # does not fit, and the log, which names another one, are made anew.
        with (data / "global" / "pg_control").open("r+b") as control:
            control.write(secrets.token_bytes(8))
        self._run("pg_resetwal", "-f", "-D", data)

    def start(self) -> None:
        """Start it, and wait until it answers; RuntimeError if it does not, or runs already."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("it runs: the one that is started now would never be ended")
        arguments = [str(self.binaries / "postgres"), "-D", str(self.directory / "data")]
        arguments += ["-p", str(self.port)]
        for name, value in self.settings.items():
            arguments += ["-c", f"{name}={value}"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*as_user(), *arguments],
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment,
            )
        end, pause = time.monotonic() + _START_S, threading.Event()
        while not self._answers(self._process):
            if time.monotonic() > end:
                raise RuntimeError("PostgreSQL does not answer")
            pause.wait(0.005)

    def crash(self) -> None:
        """End it as a crash does: no checkpoint, and recovery at the next start."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL its first process, as the kernel does out of memory; the others end by that.

        Returns when they have: it does not start while one of them lives.
        """
        if self._process is None:
            return
        others = _children(self._process.pid)
        self._end(signal.SIGKILL)
        end, pause = time.monotonic() + _START_S, threading.Event()
        while any(_lives(other) for other in others):
            if time.monotonic() > end:
                raise RuntimeError("PostgreSQL's processes outlive its first one")
            pause.wait(0.005)

    def stop(self) -> None:
        """End it and remove all it has written."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a connection of the caller's own."""
        return psycopg.connect(self.url(), **options)

    def url(self, host: str = "", **options: Any) -> str:
        """Return the store's URL with these options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        where = host or f"127.0.0.1:{self.port}"
        return f"postgresql://rifl@{where}/postgres" + (f"?{query}" if query else "")

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text()[-2000:])
        try:
            self.connect(connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, name: str, *arguments: object) -> None:
        _run(self.binaries / name, *arguments)


@functools.cache
def _first_cluster() -> Path:
    """Return the data of a cluster that is never started: a copy costs a tenth of initdb."""
    directory = _directory()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    arguments = ("-U", "rifl", "--auth=trust", "--no-sync", "-E", "UTF8")
    _run(postgres_executables() / "initdb", "-D", data, *arguments)
    return data


def _directory() -> Path:
    # Not below the caller's directory, into which only its own user may look.
    made = Path(tempfile.mkdtemp(prefix="rifl-postgres-"))
    if os.geteuid() == 0:
        os.chown(made, postgres_user().pw_uid, postgres_user().pw_gid)
    return made


def _run(program: Path | str, *arguments: object) -> None:
    command = [*as_user(), str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, cwd="/", check=False)  # noqa: S603 - our own
    if done.returncode:
        raise RuntimeError(f"{program} failed: {done.stderr.decode()[-2000:]}")


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie, for which no parent waited, has ended all the same.
    return stat.rpartition(")")[2].split()[0] != "Z"
