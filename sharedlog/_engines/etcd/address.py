"""URLs of logs in etcd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from _rifl_ground.urls import split_url
from sharedlog._engines.owner import Owner

# etcd's own.
DEFAULT_REQUEST_BYTES = 1536 << 10

_PORT = 2379
_FILES = ("ca", "cert", "key")
# What no server has: smaller ones cannot hold an append's frame.
_SMALLEST_REQUEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EtcdAddress:
    """Where the log is, and how it is used.

    ::

        etcd://[user:password@]host[:2379][,host...][/prefix]
        etcds://                                          the same over TLS

    Any of a cluster's nodes may be named, better all: one that does not answer is left
    for the next. ``prefix``: how our keys begin, by default ``curp`` for groups and
    ``sharedlog`` for shared logs. Options after ``?``: ``ca``, ``cert``, ``key``, files
    with PEM (the system's authorities and no certificate of our own by default);
    ``timeout_s``, for a whole operation (5), and ``try_s``, for one node's part in it
    (1); ``max_request_bytes``, as the server's
    ``--max-request-bytes`` (1572864); ``quota_bytes``, as its
    ``--quota-backend-bytes`` (2147483648), of which a leader warns in time;
    ``compact=no`` leaves old revisions to the cluster's own compaction.

    ``str()`` shows no credentials.
    """

    hosts: tuple[str, ...]
    tls: bool = False
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    prefix: str
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout_s: float = 5.0
    try_s: float = 1.0
    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    quota_bytes: int = 2 << 30
    compact: bool = True

    def __str__(self) -> str:
        return f"etcd {','.join(self.hosts)}"

    @classmethod
    def parse(
        cls, base: str, options: Mapping[str, str], owner: Owner, *, prefix: str
    ) -> EtcdAddress:
        """Read a URL and its options; raises ``invalid``, without the URL in it."""
        try:
            parts = split_url(base)
            userinfo, _, netloc = parts.netloc.rpartition("@")
            user, _, password = userinfo.partition(":")
            hosts = tuple(_host(host) for host in netloc.split(",") if host)
            given: dict[str, Any] = {name: _OPTIONS[name](value) for name, value in options.items()}
            found = cls(
                hosts=hosts,
                tls=parts.scheme == "etcds",
                username=unquote(user),
                password=unquote(password),
                prefix=unquote(parts.path).strip("/") or prefix,
                **given,
            )
        except KeyError as error:
            raise owner.invalid(f"a log in etcd has no parameter {error}") from None
        except ValueError as error:
            raise owner.invalid(f"not an etcd URL we understand: {error}") from None
        found._check(owner)
        return found

    def read_file(self, which: str, owner: Owner) -> bytes | None:
        """Return the PEM of ``ca``, ``cert`` or ``key``; None if it was not given."""
        path: str = getattr(self, which)
        if not path:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise owner.invalid(f"the file of {which}= cannot be read: {error}") from None

    def _check(self, owner: Owner) -> None:
        if not self.hosts:
            raise owner.invalid("an etcd URL names its nodes: etcd://host1:2379,host2:2379/prefix")
        if bool(self.cert) is not bool(self.key):
            raise owner.invalid("cert= and key= go together")
        if not self.tls and any(getattr(self, name) for name in _FILES):
            raise owner.invalid("ca=, cert= and key= are for etcds://")
        if bool(self.username) is not bool(self.password):
            raise owner.invalid("a user has a password")


def _host(text: str) -> str:
    parts = split_url(f"//{text}")
    if not parts.hostname:
        raise ValueError("a node has a host name")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{parts.port or _PORT}"


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError("timeout_s and try_s are seconds, above 0")
    return seconds


def _bytes(text: str) -> int:
    if int(text) < _SMALLEST_REQUEST_BYTES:
        raise ValueError(f"max_request_bytes and quota_bytes are {_SMALLEST_REQUEST_BYTES} or more")
    return int(text)


def _compact(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("compact is yes or no")
    return text == "yes"


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_FILES, str),
    "timeout_s": _seconds,
    "try_s": _seconds,
    "max_request_bytes": _bytes,
    "quota_bytes": _bytes,
    "compact": _compact,
}
