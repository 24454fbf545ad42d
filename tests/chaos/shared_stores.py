"""Three shared stores that are asked the same: the simulator's, Redis and PostgreSQL."""

from __future__ import annotations

from random import Random
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from chaos.postgres_server import PostgresServer
from chaos.redis_server import RedisServer
from chaos.sim.faults import Coverage
from chaos.sim.store_leases import StoreLeases
from chaos.sim.store_server import StoreBackend, StoreServer
from chaos.sim.world import World
from rifl._stores.postgres.commits import or_fail, with_literals
from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.opening import open_backend as open_postgres
from rifl._stores.postgres.store_address import store_address
from rifl._stores.redis.lease_storage import RedisLeaseStorage
from rifl._stores.redis.opening import open_backend as open_redis
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.shared.lease_watch import LeaseWatch
from rifl._stores.shared.requests import Beats, CountBeat, Ending, RecordUnclaimed

__all__ = ["OWNERS", "PostgresStore", "RedisStore", "SimulatedStore", "Subject"]

OWNERS = ("a", "b")

# Moves every time that the store keeps back by ARGV[1] ms.
_AGE = """
local function moved(at) return string.format('%.0f', tonumber(at) - tonumber(ARGV[1])) end
for _, key in ipairs(redis.call('KEYS', ARGV[2] .. ':*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'zset' and (string.match(key, ':ends$') or string.match(key, ':due$')) then
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for at = 1, #all, 2 do
      if tonumber(all[at + 1]) > 0 then redis.call('ZADD', key, moved(all[at + 1]), all[at]) end
    end
  elseif string.match(key, ':client$') then
    for _, field in ipairs({'due', 'look'}) do
      local at = redis.call('HGET', key, field)
      if at and at ~= '0' then redis.call('HSET', key, field, moved(at)) end
    end
  elseif string.match(key, ':run$') then
    local all = redis.call('HGETALL', key)
    for at = 1, #all, 2 do
      local attempt = cmsgpack.unpack(all[at + 1])
      attempt.c = attempt.c - tonumber(ARGV[1])
      redis.call('HSET', key, all[at], cmsgpack.pack(attempt))
    end
  end
end
"""


class _Time:
    """Seconds by which everything has aged."""

    def __init__(self) -> None:
        self.aged_s = 0.0

    def __call__(self) -> float:
        return self.aged_s


class Subject:
    """One implementation: its backends by owner, and what the lease server keeps in it."""

    name: str
    backends: dict[str, Any]
    leases: Any

    def __init__(self) -> None:
        self.time = _Time()
        self.woken: set[tuple[str, bytes]] = set()
        self.beats: dict[str, int] = {}

    def _listen(self) -> None:
        for owner, backend in self.backends.items():
            backend.listen(owner, lambda token, owner=owner: self.woken.add((owner, token)), bool)

    def now(self) -> float:
        """Return the store's clock."""
        beats: Beats = self.backends["a"].ask(CountBeat("a"))
        return beats.now_s

    def age(self, seconds: float) -> None:
        self.time.aged_s += seconds

    def commit(self, request: RecordUnclaimed) -> Ending:
        """Have a transaction of a handler's commit, if it may."""
        raise NotImplementedError

    def clear(self) -> None:
        self.time.aged_s = 0.0
        self.woken.clear()
        self.beats = {}
        self.leases._watch = LeaseWatch(self.time)

    def close(self) -> None:
        for backend in self.backends.values():
            backend.close()


class SimulatedStore(Subject):
    name = "simulated"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(1, (), Coverage(), tracing=False)
        self.server = StoreServer(self.world, Random(1))
        self._open()

    def _open(self) -> None:
        process = self.server.process
        self.backends = {owner: StoreBackend(process, self.server) for owner in OWNERS}
        self.leases = StoreLeases(process, self.server, self.backends["a"])
        self._listen()

    def age(self, seconds: float) -> None:
        super().age(seconds)
        self.world.loop.now += seconds
        self.server.data.lived_s += seconds

    def commit(self, request: RecordUnclaimed) -> Ending:
        return self.server.data.carry_out(request).ending  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Deliver what was published."""
        self.world.loop.run(self.world.loop.now + 0.01)

    def clear(self) -> None:
        self.server.wipe()
        self._open()
        super().clear()


class RedisStore(Subject):
    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.namespace = "same"
        address = RedisStoreAddress.parse(server.url(namespace=self.namespace, durability="warn"))
        self.backends = {owner: open_redis(address) for owner in OWNERS}
        self.leases = RedisLeaseStorage(self.backends["a"])
        self._listen()

    @property
    def _client(self) -> Any:
        return self.backends["a"].clients.blocking

    def age(self, seconds: float) -> None:
        super().age(seconds)
        self._client.eval(_AGE, 0, int(seconds * 1000), self.namespace)

    def clear(self) -> None:
        keys = [key for key in self._client.keys(f"{self.namespace}:*") if b":meta" not in key]
        if keys:
            self._client.delete(*keys)
        super().clear()


class PostgresStore(Subject):
    name = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        address = store_address(server.url(schema="same", durability="warn"))
        self.backends = {owner: open_postgres(address) for owner in OWNERS}
        self.leases = PostgresLeaseStorage(self.backends["a"])
        self._connection = server.connect(autocommit=True)
        self._listen()

    def age(self, seconds: float) -> None:
        super().age(seconds)
        self._connection.execute(
            "UPDATE same.clients SET due = due - make_interval(secs => %s)", (seconds,)
        )
        self._connection.execute(
            "UPDATE same.calls SET claimed_at = claimed_at - make_interval(secs => %s), "
            "expires_at = expires_at - make_interval(secs => %s)",
            (seconds, seconds),
        )

    def commit(self, request: RecordUnclaimed) -> Ending:
        backend = self.backends["a"]
        called = with_literals("same", *or_fail(backend, request, None))
        try:
            self._connection.execute(called.encode())
        except psycopg.Error as error:
            if error.sqlstate != "RIFL1":
                raise
            return Ending(error.diag.message_primary)
        return Ending.DONE

    def clear(self) -> None:
        # Of a few rows, a fraction of what TRUNCATE costs: it makes files anew.
        for table in ("clients", "calls", "key_counts", "sessions", "replicas"):
            self._connection.execute(SQL("DELETE FROM {}").format(Identifier("same", table)))
        super().clear()

    def close(self) -> None:
        super().close()
        self._connection.close()
