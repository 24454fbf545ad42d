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
