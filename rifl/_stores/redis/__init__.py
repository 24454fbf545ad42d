"""``redis://``, ``rediss://``, and over Sentinel or a cluster (extra ``rifl-grpc[redis]``).

- ``store``: the store and handlers' transactions; ``transaction``: the record in a pipeline.
- ``backend``: requests, and what is heard; ``combining``, ``packed_connection``: those of calls.
- ``scripts``, ``script_calls``: the Lua, and requests as calls of it.
- ``opening``: connected and checked; ``store_address``: URLs.
- ``lease_storage``: leases and sessions in the store; ``inspection``: a look into it from outside;
  ``doctor``: one before a start.
"""

from rifl._stores.redis.lease_storage import RedisLeaseStorage
from rifl._stores.redis.store import RedisStore
from rifl._stores.redis.store_address import RedisStoreAddress

__all__ = ["RedisLeaseStorage", "RedisStore", "RedisStoreAddress"]
