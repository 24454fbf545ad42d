"""A PostgreSQL server's settings, and what they mean for the guarantees (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from _rifl_ground.log import get_logger
from _rifl_ground.servers import Durability
from rifl._stores.errors import StoreNotDurable
from rifl._stores.postgres.address import PostgresAddress

_log = get_logger("rifl.store")
_WANTED = {
    "fsync": (
        ("on",),
        "a crash of the machine may lose any record, or damage the database: those calls may run "
        "again",
    ),
    "full_page_writes": (
        ("on",),
        "a crash of the machine may damage pages of the database: those calls may run again",
    ),
    "synchronous_commit": (
        ("on", "remote_apply", "remote_write", "local"),
        "a crash of the server loses up to three times wal_writer_delay of acknowledged records: "
        "those calls may run again",
    ),
}


def weakness(settings: Mapping[str, str]) -> str:
    """Return what of these settings is weaker than the guarantees need, empty if nothing is."""
    return "; ".join(f"{setting}: {cost}" for setting, cost in _weaknesses(settings))


def _weaknesses(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each setting that is weaker than the guarantees need, and what it costs."""
    return [
        (f"{name} is {settings[name]}, not {wanted[0]}", cost)
        for name, (wanted, cost) in _WANTED.items()
        if name in settings and settings[name] not in wanted
    ]


def check_settings(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    """Raise ``StoreNotDurable`` for weak settings, or say each in the log.

    ``synchronous_commit`` may be set by every session: unless ``durability`` is
    ``warn`` ours set it, and so does ``rifl.record`` in the handler's transaction, so
    that it is said and not refused.
    """
    rows = connection.execute(
        "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name", (list(_WANTED),)
    ).fetchall()
    for setting, cost in _weaknesses(dict(rows)):
        if address.durability is Durability.REQUIRE:
            if setting.startswith("synchronous_commit"):
                _log.warning("store_setting_overridden", store=str(address), setting=setting)
                continue
            raise StoreNotDurable(
                f"{address}: {setting}: {cost} (?durability=warn opens it all the same)"
            )
        _log.warning("store_not_durable", store=str(address), setting=setting, cost=cost)
