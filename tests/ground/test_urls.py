"""URLs whose authority lists hosts, in each Python that we support."""

from __future__ import annotations

import pytest

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.urls import split_url


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


def test_what_is_no_url_is_refused_as_before() -> None:
    """A bracket that does not end is no host, with or without a list."""
    assert RedisAddress.parse("redis+cluster://a:1,[::1]:2").hosts == (("a", 1), ("::1", 2))
    place = PostgresAddress.parse("postgresql://a:1,[::1]:2/db", schema="s").place
    assert place == "a,::1:1,2/db"
