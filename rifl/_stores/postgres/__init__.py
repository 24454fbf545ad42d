"""``postgresql://``, shared by any number of server replicas (extra ``rifl-grpc[postgres]``).

- ``store``: the store and handlers' transactions; ``transaction``: the record in one;
  ``commits``: one that psycopg's connection begins and ends by us, ``others``: one that other
  drivers do, ``asyncpg_blocks``: one on asyncpg. ``shared_blocks``: blocks of deliveries, which
  share one as a ``shared_group``. ``telling``: who is told of commits.
- ``backend``: carries requests out; ``request_statements``: what is sent
  for each, as ``statements``.
- ``schema``: tables and functions (``sql/``); ``continuity``: is it the database it was, by its
  beats and its ``history``?
- ``opening``: connected and checked; ``store_address``: URLs.
- ``lease_storage``, ``inspection``: leases in the store, and a look into it from outside;
  ``doctor``: one before a start.
"""

from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.store import PostgresStore
from rifl._stores.postgres.store_address import PostgresStoreAddress

__all__ = ["PostgresLeaseStorage", "PostgresStore", "PostgresStoreAddress"]
