"""``postgresql://``, shared by any number of server replicas (extra ``rifl-grpc[postgres]``)."""

from rifl._stores.postgres.address import Durability, PostgresAddress
from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.store import PostgresStore

__all__ = ["Durability", "PostgresAddress", "PostgresLeaseStorage", "PostgresStore"]
