"""The continuity of a database, as one replica sees it: is it what it was, and does it keep?"""

from __future__ import annotations

import time
from typing import NoReturn

from _rifl_ground.log import get_logger
from _rifl_ground.servers import Durability, told
from rifl._stores.shared.backend import WentBackwards
from rifl._stores.sql.dialect import Dialect, Failure, SqlServer
from rifl._stores.sql.schema import TABLES, breaks
from rifl._stores.sql.session import SqlSession

_log = get_logger("rifl.store")
_LOOK_EVERY_S = 1.0
_LOST = (
    "the database is another than it was, or has lost what it acknowledged (it was restored, "
    "or a stale replica was promoted)"
)


class SqlContinuity:
    """Compares the database with what is known of it: at each beat, and on each new connection.

    ``beats``: how many of this replica's it has confirmed. ``weak``: why what it takes may not
    be durable, ``stopped``: why it is not served from any more; empty if there is no reason.
    """

    def __init__(self, dialect: Dialect, history: str) -> None:
        self.beats = 0
        self.owner = ""
        self.weak = ""
        self.stopped = ""
        self._dialect = dialect
        self._history = history
        self._look_at = 0.0

    def check(self) -> None:
        """Raise ``WentBackwards`` if it is not served from any more."""
        if self.stopped:
            raise WentBackwards(self.stopped)

    def greet(self, session: SqlSession) -> None:
        """Look at a new connection before it is used: it may be to another server."""
        server = self._dialect.server(session.connection, TABLES)
        self._judge(server)
        known = self.beats
        try:
            row = session.row("SELECT beats FROM @.replicas WHERE owner = %s", self.owner.encode())
        except self._dialect.errors as error:
            if self._dialect.failure(error) is not Failure.MISSING:
                raise
            # A replica of the database that is behind may not even have got the tables.
            self._note_lost(_LOST)
            return
        # Without a row, others took this one for dead: that says nothing.
        if row is not None and row[0] < known:
            self._note_lost(_LOST)
            return
        if broken := breaks(self._history, server.history, self._dialect):
            if self._dialect.durability is Durability.REQUIRE:
                self._note_lost(broken)
            else:
                self._history = server.history

    def look_again(self, session: SqlSession) -> None:
        """Look now and then whether the server's settings may lose commits."""
        if time.monotonic() >= self._look_at:
            self._judge(self._dialect.server(session.connection, TABLES))

    def _judge(self, server: SqlServer) -> None:
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        if self._dialect.durability is Durability.REQUIRE:
            self.weak = server.refusal or told(server.weaknesses)

    def went_backwards(self) -> NoReturn:
        """Serve from it no more; raises ``WentBackwards``."""
        self._note_lost(_LOST)
        raise WentBackwards(self.stopped)

    def _note_lost(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = f"{reason}: calls may not be run again"
            _log.critical("store_went_backwards", error=self.stopped)
