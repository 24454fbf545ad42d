"""Leases in Redis: the row of each client, and the index of whom to look at (DESIGN §5)."""

from __future__ import annotations

from typing import Any

import redis

from lease_server._errors import StorageUnavailable, TooManyClients
from lease_server._storage import Standing
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.scripts import LEASE, LEASES
from rifl._stores.shared.backend import BackendError


class LeaseRows:
    """The rows of clients, over scripts. Any thread; every method blocks.

    The row of a client is its lease; the ``due`` index only says whom to look at:
    an entry is never later than its row says, and a row never without an entry.
    """

    def __init__(self, backend: RedisBackend) -> None:
        self.held = 0
        self._backend = backend

    def grant(self, client_id: int, term_s: float, max_clients: int) -> None:
        """Make the id known on every server. Index first: no row is ever overlooked."""
        length_ms = milliseconds(term_s)
        if self._leases("index", client_id, length_ms, max_clients)[0] == b"full":
            raise TooManyClients(f"the store holds {max_clients} leases already")
        self._lease(client_id, "grant", length_ms, b"", b"")

    def renew(self, client_id: int) -> Standing:
        """Give the lease, or the session's retention, its full length again."""
        return Standing(self._lease(client_id, "renew")[0].decode())

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        if self._lease(client_id, "release")[0] != b"gone":
            self._leases("refile", client_id, 0)

    def known_clients(self) -> list[int]:
        """Ids with a row, ended sessions left out."""
        members = [int(member) for member in self._command("zrange", self._key("due"), 0, -1)]
        with self._backend.clients.blocking.pipeline(transaction=False) as pipe:
            for client_id in members:
                pipe.hmget(self._backend.base(client_id) + "client", "store", "state", "due")
            rows = self._checked(pipe.execute)
        # A closed session that is swept has its row only to be refused by.
        return [
            client_id
            for client_id, (store, state, due) in zip(members, rows, strict=True)
            if store is not None and not (state == b"closed" and due is None)
        ]

    def count(self) -> None:
        """Count who is in the index: as dear as asking for one number."""
        self.held = int(self._command("zcard", self._key("due")))

    def drop_client(self, client_id: int) -> None:
        """Remove a client's row and records now, whoever runs a call of it."""
        self._lease(client_id, "release")
        self._lease(client_id, "retire", 0)
        self._leases("unfile", client_id)

    def _key(self, name: str) -> str:
        return self._backend.key(name)

    def _lease(self, client_id: int, *arguments: Any) -> list[Any]:
        return self._run(LEASE, client_id, *arguments)

    def _leases(self, *arguments: Any) -> list[Any]:
        return self._run(LEASES, None, *arguments)

    def _run(self, script: Any, client_id: int | None, *arguments: Any) -> list[Any]:
        try:
            return self._backend.run(script, client_id, list(arguments))
        except BackendError as error:
            raise StorageUnavailable(f"the store cannot be written: {error}") from error

    def _command(self, name: str, *arguments: Any) -> Any:
        return self._checked(getattr(self._backend.clients.blocking, name), *arguments)

    @staticmethod
    def _checked(command: Any, *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except (redis.RedisError, OSError) as error:
            raise StorageUnavailable(f"the store cannot be read: {error}") from error


def milliseconds(seconds: float) -> int:
    """Return a length of time as scripts take it, never none."""
    return max(1, int(seconds * 1000))
