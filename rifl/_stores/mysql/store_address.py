"""URLs of stores in MariaDB and MySQL (see ``MySqlStoreAddress``)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote

from _rifl_ground.servers import TIMEOUT_S, Durability
from _rifl_ground.urls import split_url
from rifl._stores.errors import UnsupportedStore
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S

SCHEMES = ("mysql", "mariadb")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_PORT = 3306


class Tls(enum.Enum):
    """Whether connections are encrypted."""

    # Where the server can; with ``ssl_ca`` always.
    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, kw_only=True, slots=True)
class MySqlStoreAddress:
    """Where a server is, and how it is used.

    ::

        mysql://[user[:password]@]host[:port]/database[?options]     (or mariadb://)

    ``prefix``: of our tables' names, ``rifl_`` by default. ``durability``: ``require``
    (default) refuses a server that may lose what it committed, ``warn`` says what that costs.
    ``max_connections``: 16 by default; a call waits for one to be free. ``timeout_s``: for
    connecting, a statement, and a free connection, 5 by default. ``unix_socket``: a path, in
    place of host and port. ``ssl_ca``, ``ssl_cert``, ``ssl_key``: files; with ``ssl_ca`` the
    server's certificate and name are checked, without it TLS is used where the server has it.
    ``tls``: ``auto`` (default), or ``off`` for none, as on one machine.
    ``beat_s``, ``dead_after_s``: see ``SharedStore``.

    ``str()`` shows no credentials.
    """

    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "prefix": str,
        "durability": Durability,
        "max_connections": int,
        "timeout_s": float,
        "unix_socket": str,
        "tls": Tls,
        "ssl_ca": str,
        "ssl_cert": str,
        "ssl_key": str,
        "beat_s": float,
        "dead_after_s": float,
    }

    host: str
    port: int
    database: str
    user: str = field(repr=False)
    password: str = field(repr=False)
    prefix: str = "rifl_"
    durability: Durability = Durability.REQUIRE
    max_connections: int = 16
    timeout_s: float = TIMEOUT_S
    unix_socket: str = ""
    tls: Tls = Tls.AUTO
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    beat_s: float = BEAT_S
    dead_after_s: float = DEAD_AFTER_S

    def __str__(self) -> str:
        where = self.unix_socket or f"{self.host}:{self.port}"
        return f"mysql {where}/{self.database}, tables {self.prefix}*"

    @classmethod
    def parse(cls, url: str) -> MySqlStoreAddress:
        """Read a URL; raises ``UnsupportedStore``, without the URL in its text."""
        try:
            parts = split_url(url)
            given = {
                name: cls.OPTIONS[name](value)
                for name, value in parse_qsl(parts.query, strict_parsing=bool(parts.query))
            }
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            host, port = parts.hostname or "127.0.0.1", parts.port or _PORT
            database = unquote(parts.path.removeprefix("/"))
        except (ValueError, KeyError):
            # The errors' texts quote the URL, which may hold a password.
            raise UnsupportedStore("not a MySQL URL that rifl understands") from None
        address = cls(
            host=host, port=port, database=database, user=user, password=password, **given
        )
        if parts.scheme not in SCHEMES or not database or "/" in database or "," in host:
            raise UnsupportedStore("a MySQL URL is mysql://user:password@host:port/database")
        if not _PREFIX.fullmatch(address.prefix):
            raise UnsupportedStore("a prefix has 1 to 32 of a-z, 0-9 and _")
        if address.max_connections < 2 or address.timeout_s <= 0:
            raise UnsupportedStore("max_connections is at least 2, and timeout_s positive")
        return address
