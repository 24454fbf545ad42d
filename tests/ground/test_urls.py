"""URLs whose authority lists hosts, in each Python that we support."""

from __future__ import annotations

from typing import Any

import pytest

import rifl
import sharedlog
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.urls import split_url
from rifl._stores.opening import open_inspection


@pytest.mark.parametrize(
    ("url", "netloc", "path", "query"),
    [
        ("redis+sentinel://u:p@a,b:1,[::1]:2/main/3?x=1", "u:p@a,b:1,[::1]:2", "/main/3", "x=1"),
        ("etcd://[::1]:1,[::2]:2", "[::1]:1,[::2]:2", "", ""),
        ("redis://a,[::1]?x=/y", "a,[::1]", "", "x=/y"),
        ("unix:///a/b", "", "/a/b", ""),
        ("memory:", "", "", ""),
        ("sqlite:////a/b?c=d", "", "//a/b", "c=d"),
    ],
)
def test_a_url_is_split_with_the_hosts_that_it_lists(
    url: str, netloc: str, path: str, query: str
) -> None:
    """Python 3.13 refuses an IPv6 address that is not alone."""
    found = split_url(url)
    assert (found.netloc, found.path, found.query) == (netloc, path, query)


@pytest.mark.parametrize("opened", [rifl.Deduplicator, sharedlog.open, open_inspection])
@pytest.mark.parametrize(
    ("scheme", "written"),
    [
        ("postgresql+asyncpg", "write postgresql://"),
        ("sqlite+aiosqlite", "write sqlite://"),
        ("nosql+asyncpg", ""),
    ],
)
def test_a_url_that_names_a_driver_is_told_what_to_write(
    opened: Any, scheme: str, written: str
) -> None:
    """SQLAlchemy's URL, pasted; without its password."""
    with pytest.raises((rifl.StoreError, sharedlog.LogError)) as refused:
        opened(f"{scheme}://user:secret@127.0.0.1:1/service")
    assert written in str(refused.value)
    assert ("write" in str(refused.value)) is bool(written)
    assert "secret" not in str(refused.value)


def test_what_is_no_url_is_refused_as_before() -> None:
    """A bracket that does not end is no host, with or without a list."""
    assert RedisAddress.parse("redis+cluster://a:1,[::1]:2").hosts == (("a", 1), ("::1", 2))
    place = PostgresAddress.parse("postgresql://a:1,[::1]:2/db", schema="s").place
    assert place == "a,::1:1,2/db"
