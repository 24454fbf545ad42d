"""URLs of servers, which may name several hosts."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def split_url(url: str) -> SplitResult:
    """Split a URL as ``urlsplit`` does; raises ``ValueError``.

    The authority may list hosts, IPv6 addresses in brackets among them. Newer releases of
    ``urlsplit`` refuse that, so it is put aside.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return urlsplit(url)
    ends = [at for mark in "/?#" if (at := rest.find(mark)) >= 0]
    end = min(ends, default=len(rest))
    return urlsplit(f"{scheme}://{rest[end:]}")._replace(netloc=rest[:end])


def without_driver(scheme: str) -> str:
    """Return what to write in place of a URL that names a driver, as SQLAlchemy's do; or nothing.

    ``+`` and a word of Redis's mean something else.
    """
    database, plus, driver = scheme.partition("+")
    if not plus or database not in ("postgresql", "postgres", "mysql", "mariadb", "sqlite"):
        return ""
    return (
        f": {driver} is a driver of SQLAlchemy's, and rifl brings its own for its own "
        f"connections: write {database}://"
    )
