"""A real MariaDB: a server with a data directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pymysql

from chaos.ports import free_port
from chaos.programs import program

__all__ = ["MariaDbServer"]

_START_S = 60.0
_SBIN = "/usr/sbin:/usr/libexec:/usr/bin"


class MariaDbServer:
    """A server on 127.0.0.1 with a database ``rifl``; ``settings`` are its options."""

    def __init__(self, **settings: str) -> None:
        self._program = program("mariadbd", _SBIN, target="mariadb")
        self.directory = Path(tempfile.mkdtemp(prefix="rifl-mariadb-"))
        # A server that starts removes the temporary tables it finds, another server's as well.
        self._temporary = self.directory / "tmp"
        self._temporary.mkdir()
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        self.port = free_port()
        self.settings = {
            "datadir": str(self.directory / "data"),
            "tmpdir": str(self._temporary),
            "bind-address": "127.0.0.1",
            "socket": str(self.directory / "socket"),
            "pid-file": str(self.directory / "pid"),
            "innodb-buffer-pool-size": "16M",
            "innodb-log-file-size": "8M",
            # Of what a kernel lends to all processes there is little, and tests run side by side.
            "innodb-use-native-aio": "OFF",
            "max-connections": "200",
            "performance-schema": "OFF",
            "skip-name-resolve": "ON",
            "user": self._user,
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._make()
        self.start()
        with self.connect(database=None) as connection:
            connection.cursor().execute("CREATE DATABASE rifl")

    def _make(self) -> None:
        install = program("mariadb-install-db", _SBIN, target="mariadb")
        done = subprocess.run(  # noqa: S603 - our own command
            [
                *(install, "--no-defaults", "--skip-test-db", f"--user={self._user}"),
                f"--datadir={self.directory / 'data'}",
                f"--tmpdir={self._temporary}",
                "--auth-root-authentication-method=normal",
                *("--innodb-log-file-size=8M", "--innodb-use-native-aio=OFF"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {done.stdout.decode()[:4000]}")

    def start(self) -> None:
        """Start it, and wait until it answers; RuntimeError if it does not, or runs already."""
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("it runs: the one that is started now would never be ended")
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [self._program, "--no-defaults", f"--port={self.port}", *options],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        end, pause = time.monotonic() + _START_S, threading.Event()
        while not self._answers(self._process):
            if time.monotonic() > end:
                raise RuntimeError("MariaDB does not answer")
            pause.wait(0.01)

    def kill(self) -> None:
        """SIGKILL it, as the kernel does out of memory."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it and remove all it has written."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, database: str | None = "rifl", **options: Any) -> Any:
        """Return a connection of the caller's own, by PyMySQL."""
        where = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": database}
        return pymysql.connect(**{**where, "ssl_disabled": True, **options})

    def url(self, address: str = "", **options: Any) -> str:
        """Return the store's URL with these options."""
        query = "&".join(f"{name}={value}" for name, value in {"tls": "off", **options}.items())
        where = address or f"127.0.0.1:{self.port}"
        return f"mysql://root@{where}/rifl?{query}"

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text()[-2000:])
        try:
            self.connect(database=None, connect_timeout=2).close()
        except pymysql.Error:
            return False
        return True
