"""PostgreSQL URLs: libpq's own, and our options (see ``PostgresAddress``)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlunsplit

import psycopg
from psycopg import conninfo

from _rifl_ground.servers import TIMEOUT_S, Durability, InvalidAddress
from _rifl_ground.urls import split_url

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


class Pooler(enum.Enum):
    """What may stand between us and the server."""

    NONE = "none"
    SESSION = "session"


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresAddress:
    """Where a server is, and how it is used.

    ::

        postgresql://[user[:password]@]host[:port][,host...]/database[?options]

    Our options; all others are libpq's (``sslmode``, ``target_session_attrs``, ...):
    ``schema``: the schema that holds our tables, made by us.
    ``durability``: ``require`` (default) refuses a server that may lose what it
    committed, ``warn`` says what that costs. ``pooler``: ``none`` (default) refuses a
    pooler such as PgBouncer, ``session`` says that one is there, in session mode.
    ``max_connections``: of each pool (one for threads, one an event loop), 16 by default;
    a call waits for one to be free, and one more listens. ``timeout_s``: for connecting, a
    statement, and a free connection, 5 by default.

    A statement without an answer is given up after ``timeout_s``. A subclass may have more
    options (``OPTIONS``). ``str()`` shows no credentials.
    """

    # How each option is read.
    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "schema": str,
        "durability": Durability,
        "pooler": Pooler,
        "max_connections": int,
        "timeout_s": float,
    }
    INVALID: ClassVar[type[Exception]] = InvalidAddress

    conninfo: str = field(repr=False)
    place: str
    schema: str
    durability: Durability = Durability.REQUIRE
    pooler: Pooler = Pooler.NONE
    max_connections: int = 16
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise InvalidAddress("a schema's name has 1 to 48 of a-z, 0-9 and _")
        if self.max_connections < 2 or self.timeout_s <= 0:
            raise InvalidAddress("max_connections is at least 2, and timeout_s positive")

    def __str__(self) -> str:
        return f"postgresql {self.place}, schema {self.schema}"

    @classmethod
    def parse(cls, url: str, *, schema: str) -> Self:
        """Read a URL; raises ``INVALID``, without the URL in its text.

        ``schema``: the one that is meant if the URL names none.
        """
        try:
            return cls._parse(url, schema)
        except InvalidAddress as error:
            raise cls.INVALID(str(error)) from None

    @classmethod
    def _parse(cls, url: str, schema: str) -> Self:
        ours: dict[str, Any] = {"schema": schema}
        theirs = []
        try:
            parts = split_url(url)
            if parts.scheme not in ("postgresql", "postgres"):
                raise InvalidAddress(f"no PostgreSQL has the scheme {parts.scheme!r}")
            for option in parts.query.split("&"):
                name, _, value = option.partition("=")
                if name in cls.OPTIONS:
                    ours[name] = cls.OPTIONS[name](unquote(value))
                else:
                    # Unchanged: libpq has rules of its own for what "+" means.
                    theirs.append(option)
            plain = urlunsplit(parts._replace(query="&".join(theirs)))
            given: dict[str, Any] = dict(conninfo.conninfo_to_dict(plain))
        except InvalidAddress:
            raise
        except (ValueError, KeyError, psycopg.Error):
            # The errors' texts quote the URL, which may hold a password.
            raise InvalidAddress("not a PostgreSQL URL we understand") from None
        hosts = str(given.get("host") or given.get("hostaddr") or "localhost")
        place = f"{hosts}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
        return cls(conninfo=plain, place=place, **ours)
