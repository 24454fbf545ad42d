"""``redis://``, ``rediss://``, and over Sentinel or a cluster (extra ``rifl-grpc[redis]``)."""

from rifl.stores.redis.address import RedisAddress
from rifl.stores.redis.lease_storage import RedisLeaseStorage
from rifl.stores.redis.store import RedisStore

__all__ = ["RedisAddress", "RedisLeaseStorage", "RedisStore"]
