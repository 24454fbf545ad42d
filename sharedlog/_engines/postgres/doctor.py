"""A look at a log in PostgreSQL by the checks of its opening; only reads."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from _rifl_ground.findings import Checkup, reached, what_to_do
from _rifl_ground.postgres.address import PostgresAddress
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
from sharedlog._core.errors import CorruptLog, LogError, NoSuchLog
from sharedlog._engines.owner import LOG, Owner
from sharedlog._engines.postgres.connection import check_server, told_lost
from sharedlog._engines.postgres.opening import parts_of
from sharedlog._engines.postgres.schema import find, stand_of, tables

_RIGHTS = {
    "meta": "SELECT",
    "log": "SELECT UPDATE",
    "key": "SELECT INSERT UPDATE DELETE",
    "entry": "SELECT INSERT DELETE",
    "tag": "SELECT INSERT DELETE",
}


def examine(url: str) -> Checkup:
    """Look at the log of a URL. Raises ``InvalidRequest`` for the URL itself."""
    return examine_log(*parts_of(url), LOG)


def examine_log(address: PostgresAddress, name: str, owner: Owner) -> Checkup:
    """Look at a log by where it is, and its name there."""
    checkup = Checkup(f"{address}, log {name!r}", LogError, NoSuchLog)
    with (
        reached(checkup, (psycopg.Error, OSError)),
        closing(connect_briefly(address)) as connection,
    ):
        # Each outside of a transaction, which would keep a pool's session for this connection.
        checkup.refused(
            "server",
            partial(check_server, connection, address, owner),
            "Give the primary's address, and use PostgreSQL 14 or newer.",
        )
        checkup.refused("pooler", partial(check_pooler, connection, address, owner.invalid))
        with only_reading(checkup, connection, address) as within:
            within(lambda: _look_at_log(checkup, connection, address, name, owner))
            look_at_settings(checkup, connection, address, tables(address.schema))
            look_at_clock(checkup, connection)
            look_at_room(checkup, connection, address)
    return checkup


def _look_at_log(
    checkup: Checkup,
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    name: str,
    owner: Owner,
) -> None:
    if not is_made(connection, address, "log"):
        if look_at_making(checkup, connection, address):
            checkup.refused("log", partial(find, connection, address, name))
        return
    if not look_at_rights(checkup, connection, address, _RIGHTS):
        return
    if checkup.refused("log", partial(find, connection, address, name)) is None:
        return
    stand = stand_of(connection, address.schema, name)
    why = stand.stopped or stand.breaks
    if stand.stopped or (why and address.durability is Durability.REQUIRE):
        checkup.error("history", told_lost(address, why, owner), what_to_do(CorruptLog))
    elif why:
        checkup.warning("history", why, what_to_do(CorruptLog))
