"""``redis://``, ``rediss://``, and over Sentinel or a cluster (extra ``rifl-grpc[redis]``)."""

from rifl._stores.redis.address import RedisAddress
from rifl._stores.redis.lease_storage import RedisLeaseStorage
from rifl._stores.redis.store import RedisStore

__all__ = ["RedisAddress", "RedisLeaseStorage", "RedisStore"]
