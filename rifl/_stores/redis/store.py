"""``redis://`` and its kin: one Redis, many server replicas (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _rifl_ground.redis.failures import by_redis
from rifl._stores.codec import RecordCodec
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.lease_storage import RedisLeaseStorage
from rifl._stores.redis.opening import open_backend
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.redis.transaction import write_record, write_record_async
from rifl._stores.shared.requests import Finish, MoveInside, RecordUnclaimed, Written
from rifl._stores.shared.store import SharedStore
from rifl._stores.shared.transactions import FencedTransactions, FinishOf
from rifl.core._serving.unclaimed import BY_RECORD
from rifl.core._shared.invariant import InvariantViolated

# The most by which clocks of a cluster's servers may differ; see the scripts' prelude.
_CLOCKS_S = 60.0


class RedisTransactions(FencedTransactions):
    """Records inside transactions of redis-py: its pipelines, blocking and asynchronous."""

    def __init__(
        self,
        backend: RedisBackend,
        finish_of: FinishOf,
        always: Callable[[str, str], None],
    ) -> None:
        super().__init__(finish_of, always)
        self._backend = backend

    def _write(self, transaction: Any, finish: Written) -> None:
        write_record(transaction, self._backend, _claimed(finish))

    async def _write_async(self, transaction: Any, finish: Written) -> None:
        await write_record_async(transaction, self._backend, _claimed(finish))


def _claimed(finish: Written) -> Finish | MoveInside:
    if isinstance(finish, RecordUnclaimed):
        raise InvariantViolated("a run without a claim, which this store has none of")
    return finish


class RedisStore(SharedStore):
    """Completion records in Redis; see ``RedisStoreAddress`` for the URL.

    What is acknowledged survives what Redis' settings make it survive: they are
    checked when the store is opened, which raises ``StoreNotDurable``,
    ``StoreUnreachable``, ``StoreCorrupt`` or ``UnsupportedStore``. An asynchronous
    failover may lose acknowledged writes whatever the settings: replicas notice a
    store that is behind what they saw, and stop.
    """

    leases: RedisLeaseStorage
    unclaimed = (BY_RECORD,)

    def __init__(self, url: str, *, codec: RecordCodec | None = None) -> None:
        address = RedisStoreAddress.parse(url)
        self._redis = open_backend(address)
        super().__init__(
            self._redis,
            RedisLeaseStorage(self._redis),
            beat_s=address.beat_s,
            dead_after_s=address.dead_after_s,
            codec=codec,
            late_after_s=self._redis.longest_s + (_CLOCKS_S if address.clustered else 0),
            unresolved=self._redis.unresolved,
        )
        self.transactions = RedisTransactions(
            self._redis, self._settlement.finish_of, self._unclaimed_runs.always
        )
        # On a cluster a handler's effects are in another slot than these.
        if not address.clustered:
            self.rows = self._rows(self._redis.store_id.decode(errors="replace"), by_redis)
