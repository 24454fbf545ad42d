"""URLs of groups' logs, taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from _rifl_ground.servers import InvalidAddress
from _rifl_ground.sqlite import address as sqlite
from _rifl_ground.system import refusal
from _rifl_ground.urls import split_url
from curp.log._errors import InvalidRequest
from curp.log._owner import GROUPS

if TYPE_CHECKING:
    from _rifl_ground.postgres.address import PostgresAddress
    from _rifl_ground.redis.address import RedisAddress
    from sharedlog._engines.etcd.address import EtcdAddress

REDIS = ("redis", "rediss", "unix")
ETCD = ("etcd", "etcds")
POSTGRES = ("postgresql", "postgres")


def parts_of(url: str) -> tuple[str, str, dict[str, str]]:
    """Return a URL's scheme, group, and other options; raises ``InvalidRequest``."""
    scheme, _, _ = url.partition(":")
    try:
        given = parse_qs(split_url(url).query, strict_parsing=True)
        groups = given.pop("group", [])
    except ValueError:
        groups = []
    if len(groups) != 1 or len(groups[0].encode()) > 256 or set(groups[0]) & set("{}"):
        raise InvalidRequest(
            "the URL of a log names its group, in up to 256 bytes without braces: ?group=NAME"
        )
    return scheme, groups[0], {name: values[-1] for name, values in given.items()}


def shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def shown_whole(url: str) -> str:
    """Return the URL that serves the log, but for what may be secret in it."""
    _, group, options = parts_of(url)
    # Of the options these alone say where it is.
    where = [(name, options[name]) for name in ("schema", "db") if name in options]
    return f"{shown(url)}?{urlencode([('group', group), *where])}"


def file_of(url: str, options: dict[str, str]) -> tuple[Path, float]:
    """Return a file, and how long to wait for others' writes; raises ``InvalidRequest``."""
    if refused := refusal("a log in SQLite"):
        raise InvalidRequest(refused)
    try:
        path, _ = sqlite.file_of(url)
        timeout_s = float(options.pop("timeout_s", "5"))
        understood = not options and 0 <= timeout_s < float("inf")
    except ValueError:
        understood = False
    if not understood:
        raise InvalidRequest(
            "a log file's URL is sqlite:///file?group=NAME, with timeout_s or none"
        )
    return path, timeout_s


def redis_address(base: str, options: dict[str, str]) -> tuple[RedisAddress, int]:
    """Return a server, and how many replicas must have a write; raises ``InvalidRequest``."""
    try:
        from _rifl_ground.redis.address import RedisAddress
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"redis:// needs the extra rifl-grpc[redis]: {error}") from error
    replicas = options.pop("replicas", "0")
    if not replicas.isdecimal():
        raise InvalidRequest("of a log's URL: replicas is a number")
    try:
        address = RedisAddress.parse(base + (f"?{urlencode(options)}" if options else ""))
    except InvalidAddress as error:
        raise InvalidRequest(str(error)) from None
    return address, int(replicas)


def etcd_address(base: str, options: dict[str, str]) -> EtcdAddress:
    """Return a cluster; raises ``InvalidRequest``."""
    from sharedlog._engines.etcd.address import EtcdAddress

    return EtcdAddress.parse(base, options, GROUPS, prefix="curp")


def postgres_address(url: str) -> PostgresAddress:
    """Return a server, and the schema there; raises ``InvalidRequest``."""
    try:
        from _rifl_ground.postgres.address import PostgresAddress
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
    base, _, query = url.partition("?")
    # As they are written: libpq has rules of its own for what they mean.
    options = [option for option in query.split("&") if option.partition("=")[0] != "group"]
    try:
        return PostgresAddress.parse(f"{base}?{'&'.join(options)}", schema="curp")
    except InvalidAddress as error:
        raise InvalidRequest(str(error)) from None


def unknown(scheme: str) -> InvalidRequest:
    """Return the error for a URL of nothing that we know."""
    return InvalidRequest(
        f"{scheme!r} is none of sqlite:///file?group=NAME, redis://host?group=NAME, "
        "etcd://host1,host2,host3?group=NAME, postgresql://host/database?group=NAME"
    )
