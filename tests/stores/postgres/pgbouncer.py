"""A real PgBouncer before a server, a process of its own in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from chaos.ports import free_port
from chaos.postgres_server import PostgresServer, as_user, postgres_user
from tests.helpers.waiting import until

__all__ = ["PgBouncer"]


class PgBouncer:
    """A pool in ``transaction``, ``statement`` or ``session`` mode, of so many sessions."""

    def __init__(self, server: PostgresServer, mode: str, size: int = 20) -> None:
        executable = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(executable).exists():
            raise RuntimeError(
                "no PgBouncer was found; on Debian and Ubuntu: apt-get install pgbouncer"
            )
        self.port = free_port()
        # Not below the caller's directory, into which only its own user may look.
        self._directory = Path(tempfile.mkdtemp(prefix="rifl-pgbouncer-"))
        users = self._directory / "users"
        users.write_text('"rifl" ""\n')
        configuration = self._directory / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = {mode}\n"
            f"default_pool_size = {size}\n"
        )
        if os.geteuid() == 0:
            for path in (self._directory, users, configuration):
                os.chown(path, postgres_user().pw_uid, postgres_user().pw_gid)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*as_user(), executable, str(configuration)], stdout=log, stderr=log, cwd="/"
            )
        until(self._answers, "PgBouncer answers")

    def url(self, **options: Any) -> str:
        """Return the store's URL with these options."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://rifl@127.0.0.1:{self.port}/postgres?{query}"

    def stop(self) -> None:
        """End it and remove all it has written."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
