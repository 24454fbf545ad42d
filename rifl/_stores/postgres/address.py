"""PostgreSQL URLs: libpq's own, and options of ours (see ``PostgresAddress``)."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlunsplit

import psycopg
from psycopg import conninfo

from _rifl_ground.urls import split_url
from rifl._stores.errors import UnsupportedStore
from rifl._stores.shared.backend import TIMEOUT_S
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


class Durability(enum.Enum):
    """What to do about settings under which PostgreSQL may forget what it committed."""

    REQUIRE = "require"
    WARN = "warn"


class Pooler(enum.Enum):
    """What may stand between us and the server."""

    NONE = "none"
    SESSION = "session"


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresAddress:
    """Where the store is, and how it is used.

    ::

        postgresql://[user[:password]@]host[:port][,host...]/database[?options]

    Options of ours; all others are libpq's (``sslmode``, ``target_session_attrs``, ...):
    ``schema``: the schema that holds our tables, ``rifl`` by default, made by us.
    ``durability``: ``require`` (default) refuses a server that may lose what it
    committed, ``warn`` says what that costs. ``pooler``: ``none`` (default) refuses a
    pooler such as PgBouncer, ``session`` says that one is there, in session mode.
    ``max_connections``: of each pool (one for threads, one an event loop), 16 by default;
    a call waits for one to be free, and one more listens. ``timeout_s``: for connecting, a
    statement, and a free connection, 5 by default. ``beat_s``, ``dead_after_s``: see
    ``SharedStore``.

    Statements that nobody answers are given up after ``timeout_s``. ``str()`` shows no
    credentials.
    """

    conninfo: str = field(repr=False)
    place: str
    schema: str = "rifl"
    durability: Durability = Durability.REQUIRE
    pooler: Pooler = Pooler.NONE
    max_connections: int = 16
    timeout_s: float = TIMEOUT_S
    beat_s: float = BEAT_S
    dead_after_s: float = DEAD_AFTER_S

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise UnsupportedStore("a schema's name has 1 to 48 of a-z, 0-9 and _")
        if self.max_connections < 2 or self.timeout_s <= 0:
            raise UnsupportedStore("max_connections is at least 2, and timeout_s positive")

    def __str__(self) -> str:
        return f"postgresql {self.place}, schema {self.schema}"

    @classmethod
    def parse(cls, url: str) -> PostgresAddress:
        """Read a URL; raises ``UnsupportedStore``, without the URL in its text."""
        try:
            parts = split_url(url)
            if parts.scheme not in ("postgresql", "postgres"):
                raise UnsupportedStore(f"no PostgreSQL store has the scheme {parts.scheme!r}")
            theirs, ours = [], {}
            for option in parts.query.split("&"):
                name, _, value = option.partition("=")
                if name in _OPTIONS:
                    ours[name] = _OPTIONS[name](unquote(value))
                else:
                    # As it is written: libpq has rules of its own for what "+" means.
                    theirs.append(option)
            plain = urlunsplit(parts._replace(query="&".join(theirs)))
            given: dict[str, Any] = dict(conninfo.conninfo_to_dict(plain))
        except UnsupportedStore:
            raise
        except (ValueError, KeyError, psycopg.Error):
            # The errors' texts quote the URL, which may hold a password.
            raise UnsupportedStore("not a PostgreSQL URL we understand") from None
        hosts = str(given.get("host") or given.get("hostaddr") or "localhost")
        place = f"{hosts}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
        return cls(conninfo=plain, place=place, **ours)


_OPTIONS: dict[str, Any] = {
    "schema": str,
    "durability": Durability,
    "pooler": Pooler,
    "max_connections": int,
    "timeout_s": float,
    "beat_s": float,
    "dead_after_s": float,
}
