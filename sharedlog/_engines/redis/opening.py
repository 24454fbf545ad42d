"""Logs in Redis by their URL (see ``RedisAddress``)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.servers import InvalidAddress
from sharedlog._core.errors import InvalidRequest
from sharedlog._engines.names import log_name
from sharedlog._engines.redis.engine import RedisEngine


def create_log(url: str, keys: Mapping[str, bytes]) -> RedisEngine:
    """Create the log that the URL names, with these keys, in one step; raises ``LogExists``."""
    return _open(url, keys)


def open_log(url: str) -> RedisEngine:
    """Open the log that the URL names; raises ``NoSuchLog``.

    Options of this library: ``log``, its name; ``durability=require`` or ``warn``; ``replicas``,
    which must have a commit before it counts; ``timeout_s``, for connecting and for each reply.
    """
    return _open(url, None)


def parts_of(url: str) -> tuple[RedisAddress, str, int]:
    """Return where the log of a URL is, its name, and how many replicas must have a commit.

    Raises ``InvalidRequest``.
    """
    base, name, options = log_name(url)
    replicas = options.pop("replicas", "0")
    if not replicas.isdecimal():
        raise InvalidRequest("of a log's URL: replicas is a number")
    try:
        address = RedisAddress.parse(base + (f"?{urlencode(options)}" if options else ""))
    except InvalidAddress as error:
        raise InvalidRequest(str(error)) from None
    return address, name, int(replicas)


def _open(url: str, new: Mapping[str, bytes] | None) -> RedisEngine:
    address, name, replicas = parts_of(url)
    return RedisEngine(address, name, replicas=replicas, new=new)
