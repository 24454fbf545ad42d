"""A PostgreSQL of the deployment's own, with the settings of a fresh installation."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg

from chaos.ports import free_ports
from chaos.postgres_server import postgres_executables
from chaos.run.process import DidNotStart, Process

__all__ = ["PostgresqlProcess"]

_START_S = 60.0
# It does not run as root.
_USERS = ("postgres", "nobody")


class PostgresqlProcess(Process):
    """A server on a port that it keeps; killed, it recovers from its log when started again."""

    def __init__(self, directory: Path) -> None:
        """Its files are elsewhere: the user it runs as may not look into ``directory``.

        Raises ``NotInstalled`` if there is no PostgreSQL.
        """
        self._programs = postgres_executables()
        # Where its files are, made by its first start: a disk may be mounted here before.
        self.home = Path(tempfile.mkdtemp(prefix="rifl-chaos-postgresql-"))
        self._data = self.home / "data"
        (self.port,) = free_ports(1)
        command = [*_as_user(), str(self._programs / "postgres"), "-D", str(self._data)]
        command += ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "unix_socket_directories=", "-c", "max_connections=200"]
        super().__init__("postgresql", command, directory, says_ready=False)

    def start(self) -> None:
        """Start it; returns when it answers."""
        if not self._data.exists():
            self._make()
        super().start()
        until = time.monotonic() + _START_S
        pause = threading.Event()
        while self.runs and time.monotonic() < until:
            try:
                psycopg.connect(
                    host="127.0.0.1",
                    port=self.port,
                    user="rifl",
                    dbname="postgres",
                    connect_timeout=2,
                ).close()
            except psycopg.OperationalError:
                pause.wait(0.05)
            else:
                return
        self.kill()
        raise DidNotStart(f"postgresql: {self.complaints()}")

    def remove(self) -> None:
        """Remove its files."""
        shutil.rmtree(self.home, ignore_errors=True)

    def _make(self) -> None:
        if os.geteuid() == 0:
            os.chown(self.home, _user().pw_uid, _user().pw_gid)
        command = [*_as_user(), str(self._programs / "initdb"), "-D", str(self._data)]
        command += ["-U", "rifl", "--auth=trust", "--no-sync", "-E", "UTF8"]
        done = subprocess.run(command, capture_output=True, cwd="/", check=False)
        if done.returncode:
            raise DidNotStart(f"initdb: {done.stderr.decode(errors='replace')[-2000:]}")


def _as_user() -> list[str]:
    """Return what to begin a command with where this process is root."""
    if os.geteuid() != 0:
        return []
    user = _user()
    setpriv = shutil.which("setpriv") or "setpriv"
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _user() -> pwd.struct_passwd:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DidNotStart("PostgreSQL does not run as root, and there is no other user")
