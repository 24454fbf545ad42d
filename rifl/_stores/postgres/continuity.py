"""The continuity of a database, as one replica sees it: is it what it was, and does it keep?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.address import Pooler, PostgresAddress
from _rifl_ground.postgres.connections import Greeting
from _rifl_ground.postgres.poolers import is_pooled
from _rifl_ground.postgres.settings import settings_with, weaknesses
from _rifl_ground.servers import Durability, told
from rifl._stores.postgres.history import breaks
from rifl._stores.postgres.schema import tables
from rifl._stores.shared.backend import WentBackwards
from rifl._stores.shared.requests import Beats, CountBeat

_log = get_logger("rifl.store")
_LOST = (
    "the database is another than it was, or has lost what it acknowledged (it was restored, "
    "or a stale standby was promoted)"
)


class Continuity:
    """Compares the database with what is known of it: at each beat, and on each new connection.

    ``beats``: how many of this replica's it has confirmed. ``weak``: why what it takes may not
    be durable, ``stopped``: why it is not served from any more; empty if there is no reason.
    ``copied``: whether commits wait for a standby; None if that was not looked at yet.
    """

    def __init__(self, address: PostgresAddress, history: str) -> None:
        self.beats = 0
        self.owner = ""
        self.weak = ""
        self.stopped = ""
        self.copied: bool | None = None
        self._address = address
        self._place = str(address)
        self._durable = address.durability is Durability.REQUIRE
        self._history = history

    def greeting(self) -> Greeting:
        """Return what each new connection is asked before it is used."""
        schema = self._address.schema
        # With what is known before it is asked: the beats go on meanwhile.
        behind = f"SELECT beats < %s::int8 FROM {schema}.replicas WHERE owner = %s"
        return Greeting(
            f"SELECT ({behind}), {schema}.history_1(), {settings_with(tables(schema))}, "
            "pg_backend_pid()".encode(),
            lambda: (self.beats, self.owner),
            self._greeted,
            # A standby that is behind may not even have got the store's tables.
            lambda: self._note_lost(_LOST),
        )

    def check(self) -> None:
        """Raise ``WentBackwards`` if it is not served from any more."""
        if self.stopped:
            raise WentBackwards(self.stopped)

    def beaten(self, request: CountBeat, rows: list[Any]) -> Beats:
        """Learn from a beat's reply, and return it."""
        beats = {owner: count for owner, count, *_ in rows}
        if "" in beats:
            self.went_backwards()
        # Beats are carried out one after the other.
        self.beats = beats.get(request.owner, self.beats)
        if rows:
            self.copied = rows[0][3]
            self._judge(rows[0][4])
        return Beats(beats, rows[0][2] if rows else 0.0)

    def _greeted(self, connection: Any, rows: list[Any]) -> None:
        behind, history, settings, pid = rows[0]
        self._judge(settings)
        if self._address.pooler is Pooler.NONE and is_pooled(connection, pid):
            self.weak = self.weak or "a pooler stands between, which may be in transaction mode"
        # Without a row, others took this replica for dead: that says nothing.
        if behind:
            self._note_lost(_LOST)
        elif broken := breaks(self._history, history, copied=bool(self.copied)):
            if self._durable:
                self._note_lost(broken)
            else:
                _log.critical("store_may_have_lost", store=self._place, reason=broken)
                self._history = history
        elif history and history != self._history:
            _log.warning("store_failed_over", store=self._place, was=self._history, now=history)
            self._history = history

    def went_backwards(self) -> NoReturn:
        """Serve from it no more; raises ``WentBackwards``."""
        self._note_lost(_LOST)
        raise WentBackwards(self.stopped)

    def _note_lost(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = f"{reason}: calls may not be run again"
            _log.critical("store_went_backwards", error=self.stopped)

    def _judge(self, settings: Sequence[Any]) -> None:
        if self._durable:
            self.weak = told(weaknesses(settings))
