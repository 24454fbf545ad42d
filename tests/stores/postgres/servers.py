"""Real PostgreSQL servers, each a cluster of its own in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import psycopg

from tests.helpers.ports import free_port
from tests.helpers.waiting import until

__all__ = ["DroppingProxy", "PostgresServer", "PostgresStandby", "executables"]

_START_S = 60.0


def executables() -> Path:
    """Return the directory of initdb and postgres, of the newest version there is."""
    if found := shutil.which("initdb"):
        # It may be a link to it alone.
        return Path(found).resolve().parent
    for where in ("/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb"):
        versions = sorted(Path("/").glob(where[1:]), key=lambda path: path.parts)
        if versions:
            return versions[-1].parent
    raise AssertionError(
        "no PostgreSQL server was found; on Debian and Ubuntu: apt-get install postgresql"
    )


def _as_user() -> list[str]:
    """Return what to begin a command with: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return []
    user = _user()
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("PostgreSQL does not run as root, and there is no other user")


class PostgresServer:
    """A server on 127.0.0.1, with the settings of a fresh installation."""

    def __init__(self, **settings: str) -> None:
        self.binaries = executables()
        # Not below pytest's directory, into which only its own user may look.
        self.directory = Path(tempfile.mkdtemp(prefix="rifl-postgres-"))
        if os.geteuid() == 0:
            os.chown(self.directory, _user().pw_uid, _user().pw_gid)
        self._make(self.directory / "data")
        self.port = free_port()
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _make(self, data: Path) -> None:
        self._run("initdb", "-D", data, "-U", "rifl", "--auth=trust", "--no-sync", "-E", "UTF8")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        arguments = [str(self.binaries / "postgres"), "-D", str(self.directory / "data")]
        arguments += ["-p", str(self.port)]
        for name, value in self.settings.items():
            arguments += ["-c", f"{name}={value}"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), *arguments], stdout=log, stderr=log, cwd="/"
            )
        until(self._answers, "PostgreSQL answers", _START_S)

    def crash(self) -> None:
        """End it as a crash does: no checkpoint, and recovery at the next start."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it and remove all it has written."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a connection of the test's own."""
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

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.directory / "log").read_text()[-2000:])
        try:
            self.connect(connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, name: str, *arguments: Any) -> None:
        command = [*_as_user(), str(self.binaries / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, cwd="/", check=False)
        if done.returncode:
            raise AssertionError(f"{name} failed: {done.stderr.decode()[-2000:]}")


class PostgresStandby(PostgresServer):
    """A streaming standby of another server, which reads until it is promoted."""

    def __init__(self, primary: PostgresServer, **settings: str) -> None:
        self._primary = primary
        super().__init__(**settings)

    def _make(self, data: Path) -> None:
        where = ("-h", "127.0.0.1", "-p", self._primary.port, "-U", "rifl")
        self._run("pg_basebackup", "-D", data, *where, "-R", "-c", "fast", "--no-sync")

    def promote(self) -> None:
        """It is the primary from now on."""
        with self.connect(autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def cut_off(self) -> None:
        """It gets nothing from now on."""
        with self.connect(autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
        until(lambda: not self._receives(), "it receives nothing")

    def _receives(self) -> bool:
        with self.connect() as connection:
            row = connection.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone()
            return bool(row and row[0])


class DroppingProxy:
    """Between a client and the server; drops the connection that says a given word.

    ``forward``: the server still gets the word, and only its reply is lost.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._word: bytes | None = None
        self._forward = False
        self.dropped = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_at(self, word: bytes, *, forward: bool) -> None:
        """Drop the next connection whose client says the word."""
        self._word, self._forward = word, forward
        self.dropped.clear()

    def close(self) -> None:
        """Accept no more."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            for source, sink, watched in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, watched), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, watched: bool) -> None:
        try:
            while data := source.recv(65536):
                if watched and self._word and self._word in data:
                    self._word = None
                    if self._forward:
                        # Nothing comes back any more, but the server reads this.
                        source.shutdown(socket.SHUT_RDWR)
                        sink.sendall(data)
                    self.dropped.set()
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
