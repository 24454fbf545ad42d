"""``postgresql://``, shared by any number of server replicas (extra ``rifl-grpc[postgres]``).

- ``store``: the store and handlers' transactions; ``transaction``: the record in one;
  ``commits``: one that psycopg's connection begins and ends by us.
- ``backend``: requests as ``statements`` over ``connections``; ``stalls``.
- ``schema``: tables and functions (``sql/``); ``history``: is it the database it was?
- ``opening``: connected and checked, by ``settings`` and ``poolers``; ``address``: URLs.
- ``lease_storage``, ``inspection``: leases in the store, and a look into it from outside.
"""

from rifl._stores.postgres.address import Durability, PostgresAddress
from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.store import PostgresStore

__all__ = ["Durability", "PostgresAddress", "PostgresLeaseStorage", "PostgresStore"]
