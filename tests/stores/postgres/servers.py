"""Real PostgreSQL servers, each a cluster of its own in a directory of its own."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from chaos.postgres_server import PostgresServer
from tests.helpers.waiting import until

__all__ = ["DroppingProxy", "PostgresServer", "PostgresStandby"]


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
            row = connection.execute("SELECT pg_promote()").fetchone()
            # Else it waited a minute in vain.
            assert row == (True,)

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
                    # Before the client can see it, and ask again.
                    self.dropped.set()
                    if self._forward:
                        # Nothing comes back any more, but the server reads this.
                        source.shutdown(socket.SHUT_RDWR)
                        sink.sendall(data)
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
