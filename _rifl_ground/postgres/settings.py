"""A PostgreSQL server's settings, and what they mean for what it commits (DESIGN §6).

``docs/stores-postgresql.md`` tells why the settings that are not here do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.servers import Durability, Weakness, told

# What each has to be, and what it costs if it is not. A session cannot set these.
WANTED = {
    "fsync": ("on", "a crash of the machine may lose any commit, or damage the database"),
    "full_page_writes": ("on", "a crash of the machine may damage pages of the database"),
}
# In a list of columns: what a server's settings are, as ``weaknesses`` reads them.
SETTINGS = f"ARRAY[{', '.join(f'current_setting({name!r}, true)' for name in WANTED)}]"
# A session sets this one by itself, unless durability is warn.
_SYNCHRONOUS = Weakness(
    "synchronous_commit is off, not on",
    "a crash of the server loses up to three times wal_writer_delay of commits",
)
# Has a session, or a transaction (the argument is true), wait for the disk.
SYNCED = (
    "SELECT set_config('synchronous_commit', 'on', {}) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


def weaknesses(found: Sequence[str | None]) -> list[Weakness]:
    """Return what of a server's settings is weak; one that this release has not is not."""
    return [
        Weakness(f"{name} is {value}, not {wanted}", cost)
        for (name, (wanted, cost)), value in zip(WANTED.items(), found, strict=True)
        if value not in (wanted, None)
    ]


def check_durability(
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    refused: Callable[[str], Exception],
) -> list[Weakness]:
    """Return what is weak at an address that says ``durability=warn``.

    Raises ``refused(why)`` at another one, unless it is ``synchronous_commit`` alone: every
    session of ours overrides that, and so does ``rifl.record`` in a handler's transaction.
    """
    row = connection.execute(
        f"SELECT {SETTINGS}, current_setting('synchronous_commit') = 'off'".encode()
    ).fetchone()
    found, unsynced = row or ((), False)
    weak = weaknesses(found)
    if weak and address.durability is Durability.REQUIRE:
        raise refused(f"{address}: {told(weak)} (?durability=warn opens it all the same)")
    return [*weak, *[_SYNCHRONOUS] * unsynced]
