"""Redis URLs, redis-py's own and two schemes more (see ``RedisAddress``)."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlencode

from redis.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)

from _rifl_ground.servers import TIMEOUT_S, Durability, InvalidAddress
from _rifl_ground.urls import split_url

_PORT = 6379
_SENTINEL_PORT = 26379
# As redis-py reads a URL's options; the others are texts.
_PARSERS: Mapping[str, Any] = URL_QUERY_ARGUMENT_PARSERS
_FALSE = ("", "0", "F", "FALSE", "N", "NO")
_UTF_8 = ("utf-8", "utf8")


class Topology(enum.Enum):
    """What answers at the address."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisAddress:
    """Where a server is, and how it is used.

    ::

        redis://[user:password@]host[:port][/db]          rediss:// over TLS
        unix://[user:password@]/path.sock[?db=0]
        redis+sentinel://[user:password@]host[:26379][,host...]/primary-name[/db]
        redis+cluster://[user:password@]host[:port][,host...]
        rediss+sentinel://, rediss+cluster://             the same over TLS

    Options after ``?``; all others are redis-py's (``ssl_ca_certs``, ...):
    ``durability``: ``require`` (default) refuses to open a Redis whose settings may
    lose acknowledged writes, ``warn`` says what each costs. ``max_connections``: of each
    client's pool (one for threads, one an event loop), 64 by default; a call waits for one
    to be free. ``timeout_s``: for connecting, each reply and a free connection, 5 by default.

    A subclass may have more options (``OPTIONS``). ``str()`` shows no credentials.
    """

    # How each option is read.
    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "durability": Durability,
        "max_connections": int,
        "timeout_s": float,
    }
    INVALID: ClassVar[type[Exception]] = InvalidAddress

    topology: Topology
    hosts: tuple[tuple[str, int], ...] = ()
    # The URL that redis-py understands, for a single server.
    url: str = field(default="", repr=False)
    primary: str = ""
    db: int = 0
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    durability: Durability = Durability.REQUIRE
    max_connections: int = 64
    timeout_s: float = TIMEOUT_S
    # Redis-py's own, as it reads them.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        if self.by_path:
            hosts = split_url(self.url).path
        return f"redis {self.topology.value} {hosts}"

    @property
    def clustered(self) -> bool:
        """Whether keys of different hash tags may be on different servers."""
        return self.topology is Topology.CLUSTER

    @property
    def by_path(self) -> bool:
        """Whether the server is reached by a socket in the file system."""
        return self.url.startswith("unix:")

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL; raises ``INVALID``, without the URL in its text."""
        try:
            return cls._parse(url)
        except InvalidAddress as error:
            raise cls.INVALID(str(error)) from None
        except (ValueError, KeyError) as error:
            raise cls.INVALID(f"not a Redis URL we understand: {error}") from None

    @classmethod
    def _parse(cls, url: str) -> Self:
        parts = split_url(url)
        scheme, _, kind = parts.scheme.partition("+")
        if scheme not in ("redis", "rediss", "unix") or (scheme == "unix" and kind):
            raise InvalidAddress(f"no Redis has the scheme {parts.scheme!r}")
        topology = Topology(kind or "server")
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        ours: dict[str, Any] = {}
        for name, read in cls.OPTIONS.items():
            if name in given:
                ours[name] = read(given.pop(name))
        decoded = given.pop("decode_responses", "no").upper() not in _FALSE
        if decoded or given.pop("encoding", "utf-8").lower() not in _UTF_8:
            raise InvalidAddress("what is kept there is bytes: decode_responses, encoding")
        if unknown := sorted(set(given) - _known_to_the_driver()):
            raise InvalidAddress(f"the URL has no parameter {unknown[0]!r}")
        userinfo, _, netloc = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        default_port = _SENTINEL_PORT if topology is Topology.SENTINEL else _PORT
        hosts = tuple(
            _host(host, default_port) for host in (netloc or "localhost").split(",") if host
        )
        path = [unquote(part) for part in parts.path.split("/") if part]
        primary = ""
        if topology is Topology.SENTINEL:
            if not path:
                raise InvalidAddress("a Sentinel URL names the primary: /primary-name")
            primary = path.pop(0)
        if topology is Topology.CLUSTER and path:
            raise InvalidAddress("a cluster has no numbered databases")
        query = f"?{urlencode(given)}" if given else ""
        return cls(
            topology=topology,
            hosts=() if scheme == "unix" else hosts,
            # Not urlunsplit: without a host, as in unix:///path, it leaves out the //.
            url=f"{scheme}://{parts.netloc}{parts.path}{query}",
            primary=primary,
            db=int(path[0]) if path and scheme != "unix" else 0,
            tls=scheme == "rediss",
            username=unquote(user) or None,
            password=unquote(password) or None,
            options={name: _PARSERS.get(name, str)(value) for name, value in given.items()},
            **ours,
        )


def _known_to_the_driver() -> set[str]:
    """Return the parameters that redis-py takes for a connection."""
    kinds = (AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection)
    own = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
    return (own | set(URL_QUERY_ARGUMENT_PARSERS)) - {"self", "args", "kwargs"}


def _host(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, int(port.lstrip(":") or default_port)
    host, _, port = text.partition(":")
    return host, int(port or default_port)
