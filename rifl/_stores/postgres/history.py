"""The history of a database: is it what it was when the store was last written? (DESIGN §6)

An asynchronous standby that is promoted, and a backup that is restored, may lack what was
acknowledged, and the processes that know may have crashed with the primary. So the store
keeps the server and the history it is written on, and one that does not go on stops it for
everyone, until an operator accepts the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.servers import Durability

_log = get_logger("rifl.store")


def breaks(kept: str, found: str, *, copied: bool) -> str:
    """Return why a store that was written on ``kept`` may have lost something on ``found``.

    ``copied``: every commit waited until a standby had it. Empty: nothing is lost, or the
    server does not tell.
    """
    if not kept or not found or kept == found:
        return ""
    if kept.partition("/")[0] != found.partition("/")[0]:
        return f"the database server is another one (it was {kept}, and is {found})"
    if copied:
        return ""
    return (
        f"the database server was restored, or a standby was promoted (it was {kept}, and is "
        f"{found}), that commits did not wait for"
    )


class History(NamedTuple):
    """Where a store was written last, and where it is now; ``broken``: why it does not go on."""

    kept: str
    found: str
    copied: str
    broken: str


def look_at_history(
    connection: psycopg.Connection[Any], address: PostgresAddress, meta: Mapping[str, str]
) -> History:
    """Return what the server says of itself, beside what the store's notes say; only reads."""
    row = connection.execute(
        f"SELECT {address.schema}.history_1(), {address.schema}.copied_1()::text".encode()
    ).fetchone()
    found, copied = row or ("", "false")
    kept = meta.get("history", "")
    broken = breaks(kept, found, copied=meta.get("copied") == "true")
    return History(kept, found, copied, broken)


def continue_history(
    connection: psycopg.Connection[Any], address: PostgresAddress, meta: Mapping[str, str]
) -> tuple[str, str]:
    """Note the history that is written from now on; why it breaks off, and which it is."""
    kept, found, copied, broken = look_at_history(connection, address, meta)
    if broken and address.durability is Durability.WARN:
        _log.critical("store_may_have_lost", store=str(address), reason=broken)
    elif broken:
        return broken, found
    elif kept and found and kept != found:
        _log.warning("store_failed_over", store=str(address), was=kept, now=found)
    note = f"INSERT INTO {address.schema}.meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE "
    for name, value in (("history", found), ("copied", copied)):
        connection.execute(f"{note}SET value = excluded.value".encode(), (name, value))
    return "", found


def stop(
    connection: psycopg.Connection[Any], address: PostgresAddress, store_id: str, why: str
) -> None:
    """Have the store refuse everyone from now on."""
    connection.execute(f"SELECT {address.schema}.stop_1(%s, %s)".encode(), (store_id, why))
    _log.critical("store_sealed", store=str(address), reason=why)


def stopped(address: PostgresAddress, why: str) -> str:
    """Return what is said of a store that has stopped."""
    return (
        f"{address} may have lost records that it had acknowledged: {why}. Calls may have run of "
        "which it knows nothing. Once that is settled: rifl accept-loss URL"
    )
