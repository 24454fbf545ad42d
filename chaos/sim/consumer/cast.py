"""Machinery: the store, the service that is called, and what processes did of one consumer."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from chaos.sim.consumer.database import Database, Effect
from chaos.sim.consumer.log_state import LogState
from chaos.sim.consumer.names import CONSUMER, TAGS
from chaos.sim.consumer.redis_store import RedisDatabase, opened
from chaos.sim.consumer.server_store import ServerStore
from chaos.sim.consumer.service import Service
from chaos.sim.consumer.sql_server import SqlServer
from chaos.sim.consumer.sqlite_store import FileStore
from chaos.sim.consumer.stage import Acting, Setup, Stage
from chaos.sim.consumer.wire import Wire
from chaos.sim.log.oracle import committed
from chaos.sim.loop import Process
from sharedlog._consumer.in_log import LogStore
from sharedlog._core.errors import LogError, LogForked, StoreWentBack
from sharedlog._log.place import Place

__all__ = ["ConsumerCast"]


class ConsumerCast(Stage):
    """The stage, and who plays on it."""

    def __init__(self, seed: int, setup: Setup, *, tracing: bool) -> None:
        super().__init__(seed, setup, tracing=tracing)
        # What consumers ended with, of what no further try mends; and who is told.
        self.refusals: Counter[str] = Counter()
        self.told: Callable[[LogError], None] = lambda error: None
        # The store was put back from a backup; an operator has the log forget what it knew.
        self.went_back = self.forgot = False
        # What was done is done again, as an operator has said.
        self.redone = False
        # What the log has rolled back since then is lost.
        self.lost = False
        # The ways to the store and to the service that is called.
        self.store_wire = Wire(self, 0.4)
        self.service = Service(self)
        kinds: dict[str, type[RedisDatabase | Database]]
        kinds = {"redis": RedisDatabase, "postgres": SqlServer}
        self.database = kinds.get(setup.store, Database)()
        # Lives of processes, by what names each among those of the consumer. They are of one
        # machine, where the end of one is evident, or each is of its own.
        self.members: dict[str, Process] = {}
        self._one_machine = seed % 2 == 0
        # When the store went back, and where its shards were until then.
        self._before: tuple[float, dict[str, str]] = (-1.0, {})
        self._states: tuple[int, dict[str, LogState]] = (-1, {})

    def has_ended(self, who: str) -> bool:
        """Whether it is evident that a process has ended; of no other one it ever is."""
        return self._one_machine and not self.members[who].alive

    def store_of(self, actor: Acting, place: Place) -> Any:
        """Return a store of a process's life."""
        if self.setup.store == "log":
            return LogStore(place, CONSUMER)
        if isinstance(self.database, RedisDatabase):
            return opened(self, actor, self.database, self.store_wire)
        if isinstance(self.database, SqlServer):
            return ServerStore(self, actor, self.database, self.store_wire)
        return FileStore(self, actor, self.database, self.store_wire)

    def effects(self, shard: str) -> list[Effect]:
        """Return a shard's effects, in their order."""
        if self.setup.store == "log":
            return self.state(shard).effects()
        return self.database.effects(shard)

    def ticks(self, shard: str) -> int:
        """Return how often a shard's timer was committed."""
        if self.setup.store == "log":
            return self.state(shard).ticks()
        return self.database.ticks(shard)

    def restore(self) -> None:
        """Have the store be as it was when it was copied."""
        self._before = self.loop.now, {tag: self.position(tag) for tag in TAGS}
        self.database.restore()
        self.went_back = True

    def position(self, shard: str, asked_at: float = math.inf) -> str:
        """Return through which message a shard's effects are there, as text.

        ``asked_at``: to a process that asked something then; the store may have gone back since.
        """
        restored_at, before = self._before
        if asked_at <= restored_at:
            return before[shard]
        if self.setup.store != "log":
            return self.database.position(shard)
        done = self.server.log.keys.get(f"state/{CONSUMER}/{shard}/done", b"")
        return done[struct.calcsize(">BQQ") :].decode()

    def state(self, shard: str) -> LogState:
        """Return a shard's state, as all that was ever committed makes it."""
        rows = self.server.seen.rows
        if len(rows) != self._states[0]:
            found = committed(rows)
            states = {tag: LogState(found.get(f"*changes/{CONSUMER}/{tag}", ())) for tag in TAGS}
            self._states = len(rows), states
        return self._states[1][shard]

    def refused(self, error: LogError) -> None:
        """Note what a consumer ended with, which no further try mends."""
        self.refusals[type(error).__name__] += 1
        self.told(error)
        if not self.expected(error):
            self.oracle.broken("refused", f"a consumer ended: {error!r}")

    def expected(self, error: LogError) -> bool:
        """Whether a consumer may end so."""
        if self.forgot and isinstance(error, LogForked):
            self.lost = True
        return self.lost or (isinstance(error, StoreWentBack) and self.went_back)
