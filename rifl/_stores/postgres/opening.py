"""Opening a PostgreSQL store: connected, checked, and known to be the one it was."""

from __future__ import annotations

import psycopg

from rifl._stores.errors import StoreUnreachable
from rifl._stores.postgres.address import PostgresAddress
from rifl._stores.postgres.backend import PostgresBackend, failed
from rifl._stores.postgres.connections import Pools
from rifl._stores.postgres.poolers import check_pooler
from rifl._stores.postgres.schema import prepare, read_store_id
from rifl._stores.postgres.settings import check_settings


def open_backend(address: PostgresAddress) -> PostgresBackend:
    """Connect, check the settings, make the schema; raises a ``StoreError``."""
    pools = Pools(address)
    try:
        with pools.listener() as connection:
            check_pooler(connection, pools.listener, address)
            check_settings(connection, address)
            prepared = prepare(connection, address)
        backend = PostgresBackend(address, pools, *prepared)
        # From now on, every connection is looked at.
        pools.blocking.open()
    except (psycopg.Error, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be used: {failed(error)}") from error
    return backend


def store_id_at(address: PostgresAddress) -> str:
    """Return the id of the store that is there, empty if there is none; makes nothing."""
    try:
        with Pools(address).listener() as connection:
            return read_store_id(connection, address)
    except (psycopg.Error, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be used: {failed(error)}") from error
