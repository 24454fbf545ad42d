"""A look at a store in PostgreSQL by the checks of its start; only reads."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from _rifl_ground.findings import Checkup, reached, what_to_do
from _rifl_ground.postgres.connections import connect_briefly
from _rifl_ground.postgres.doctor import (
    is_made,
    look_at_clock,
    look_at_making,
    look_at_rights,
    look_at_room,
    look_at_settings,
    only_reading,
)
from _rifl_ground.postgres.poolers import check_pooler
from _rifl_ground.servers import Durability
from rifl._stores.errors import StoreCorrupt, StoreError, UnsupportedStore
from rifl._stores.postgres.history import look_at_history, stopped
from rifl._stores.postgres.schema import (
    FUNCTIONS,
    check_version,
    check_writable,
    checked,
    noted,
    tables,
)
from rifl._stores.postgres.store_address import PostgresStoreAddress, store_address

_RIGHTS = "SELECT INSERT UPDATE DELETE"
_OWNS = """
SELECT bool_and(pg_has_role(proowner, 'USAGE')) FROM pg_proc
JOIN pg_namespace AS space ON space.oid = pronamespace AND nspname = %s
"""


def examine(url: str) -> Checkup:
    """Look at the store of a URL. Raises ``UnsupportedStore`` for the URL itself."""
    address = store_address(url)
    checkup = Checkup(str(address), StoreError)
    with (
        reached(checkup, (psycopg.Error, OSError)),
        closing(connect_briefly(address)) as connection,
    ):
        # Each outside of a transaction, which would keep a pool's session for this connection.
        checkup.refused("server", partial(check_version, connection, address), "Upgrade it.")
        checkup.refused(
            "server", partial(check_writable, connection, address), "Give the primary's address."
        )
        checkup.refused("pooler", partial(check_pooler, connection, address, UnsupportedStore))
        with only_reading(checkup, connection, address) as within:
            within(lambda: _look_at_store(checkup, connection, address))
            look_at_settings(checkup, connection, address, tables(address.schema))
            look_at_clock(checkup, connection)
            look_at_room(checkup, connection, address)
    return checkup


def _look_at_store(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresStoreAddress
) -> None:
    if not is_made(connection, address, "meta"):
        if look_at_making(checkup, connection, address):
            checkup.note("store", "there is none yet: the first server makes it")
        return
    wanted = dict.fromkeys(tables(address.schema).names, _RIGHTS)
    if not look_at_rights(checkup, connection, address, wanted):
        return
    meta = checkup.refused("store", partial(noted, connection, address))
    met = None if meta is None else checkup.refused("store", partial(checked, meta, address))
    if meta is None or met is None:
        return
    if met.functions < FUNCTIONS:
        _look_at_functions(checkup, connection, address)
    history = look_at_history(connection, address, meta)
    if history.broken and address.durability is Durability.REQUIRE:
        checkup.error("history", stopped(address, history.broken), what_to_do(StoreCorrupt))
    elif history.broken:
        checkup.warning("history", history.broken, what_to_do(StoreCorrupt))


def _look_at_functions(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresStoreAddress
) -> None:
    row = connection.execute(_OWNS, (address.schema,)).fetchone()
    if row and row[0]:
        checkup.note("store", "an older release made its functions: the next server replaces them")
    else:
        checkup.error(
            "rights",
            "an older release made the store's functions, and the role may not replace them",
            "Have an administrator run what rifl.postgres_schema gives with functions_only.",
        )
