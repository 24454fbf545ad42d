"""Oracle: the clients that a server promises to know, told their ids or caught by a crash."""

from __future__ import annotations

from chaos.sim.loop import Process
from chaos.sim.world import World
from curp._replica.group_store import GroupStore
from rifl._stores.base import Store
from rifl._stores.sqlite.store import SqliteStore

__all__ = ["KnownClients"]


class KnownClients:
    """Those of one server, through all its lives."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        # Clients whose handlers the last crash caught: they are known, and have a full term.
        self.caught: set[int] = set()
        # Clients that had a handler run here, in any life.
        self._met: set[int] = set()
        self._process: Process
        self._known_until = 0.0
        self._term_s = 0.0

    def begin(self, process: Process, term_s: float) -> None:
        """Begin a life."""
        self._process = process
        self._known_until = process.clock() + term_s
        self._term_s = term_s

    def is_new(self, client_id: int) -> bool:
        """Whether no handler of the client has run here, so far."""
        new = client_id not in self._met
        self._met.add(client_id)
        return new

    def granted(self, store: Store, client_id: int) -> None:
        """Note that a client was told its id."""
        if isinstance(store, (SqliteStore, GroupStore)):
            self._world.granted[client_id] = self._world.loop.now

    def released(self, client_id: int) -> None:
        """Note that a client has ended."""
        self.caught.clear()
        self._world.granted.pop(client_id, None)

    def forget(self) -> None:
        """Lose the store, or what came after a copy of it: no client has to be known."""
        self.caught.clear()
        self._world.granted.clear()

    def told_as_expired(self, store: Store, client_id: int) -> None:
        """A client that was told its id, and one whose handler ran at a crash, has a term (§5)."""
        kept = isinstance(store, SqliteStore)
        told_at = self._world.granted.get(client_id)
        # Clocks run differently, and it may have been released by then.
        if told_at is not None and self._world.loop.now - told_at < self._term_s / 2:
            self._world.problems.append(
                f"unknown: {self._name} does not know client {client_id}, granted a moment ago"
            )
        if kept and client_id in self.caught and self._process.clock() < self._known_until:
            self._world.problems.append(
                f"unknown: {self._name} forgot client {client_id}, whose call a crash caught"
            )
