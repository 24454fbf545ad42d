"""Opening a PostgreSQL store: connected, checked, and known to be the one it was."""

from __future__ import annotations

from typing import Any

import psycopg

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import Pools, connect_as_ours
from _rifl_ground.postgres.poolers import check_pooler
from _rifl_ground.postgres.settings import check_durability
from _rifl_ground.servers import Durability
from rifl._stores.errors import StoreNotDurable, StoreUnreachable, UnsupportedStore
from rifl._stores.postgres.backend import PostgresBackend, failed
from rifl._stores.postgres.schema import prepare, read_store_id, tables

_log = get_logger("rifl.store")


def open_backend(address: PostgresAddress) -> PostgresBackend:
    """Connect, check the settings, make the schema; raises a ``StoreError``."""
    try:
        with connect_as_ours(address) as connection:
            check_pooler(connection, address, UnsupportedStore)
            _check_durability(connection, address)
            prepared = prepare(connection, address)
        pools = Pools(address)
        backend = PostgresBackend(address, pools, *prepared)
        # From now on, every connection is looked at.
        pools.blocking.open()
    except (psycopg.Error, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be used: {failed(error)}") from error
    return backend


def _check_durability(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    """Raise ``StoreNotDurable`` for weak settings, or say each in the log."""
    again = "those calls may run again"
    for setting, cost in check_durability(
        connection,
        address,
        tables(address.schema),
        lambda why: StoreNotDurable(f"{why}; {again}"),
    ):
        if address.durability is Durability.REQUIRE:
            _log.warning("store_setting_overridden", store=str(address), setting=setting)
        else:
            _log.warning(
                "store_not_durable", store=str(address), setting=setting, cost=f"{cost}: {again}"
            )


def store_id_at(address: PostgresAddress) -> str:
    """Return the id of the store that is there, empty if there is none; makes nothing."""
    try:
        with connect_as_ours(address) as connection:
            return read_store_id(connection, address)
    except (psycopg.Error, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be used: {failed(error)}") from error
