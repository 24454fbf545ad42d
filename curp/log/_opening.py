"""Log engines by URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from curp.log._engine import LogEngine, NewLog
from curp.log._errors import InvalidRequest
from curp.log._owner import GROUPS
from curp.log._states import check_state
from rifl._stores.errors import UnsupportedStore

if TYPE_CHECKING:
    from rifl._stores.postgres.address import PostgresAddress
    from sharedlog._engines.etcd.address import EtcdAddress

_REDIS = ("redis", "rediss", "unix")
_ETCD = ("etcd", "etcds")


def open_engine(url: str, *, new: NewLog | None = None, read_only: bool = False) -> LogEngine:
    """Open one group's log; raises a ``LogError``, ``InvalidRequest`` for a wrong URL.

    ::

        sqlite:///file?group=NAME                  four slashes: from the root
            timeout_s=5            how long to wait for other processes' writes
        redis://[user:password@]host[:port][/db]?group=NAME
            or rediss://, unix://, redis+sentinel://, redis+cluster://: see RedisAddress
            durability=require     or warn: what to do about a server that may forget
            replicas=0             must have a write before it counts, within timeout_s / 2
            timeout_s=5            for connecting and for each reply
        etcd://[user:password@]host[:port][,host...][/prefix]?group=NAME
            or etcds:// over TLS; ca=, cert=, key= and more: see EtcdAddress
        postgresql://[user[:password]@]host[:port][,host...]/database?group=NAME
            schema=curp            that holds the logs; further options: see PostgresAddress

    ``NoSuchLog`` where there is none. ``new`` creates it (see ``curp.log.create_log``),
    and is ``LogExists`` where there is one. ``read_only``: for tools that only look; what
    they may not do is not asked. A log that was moved (``LogMoved``) or is no whole copy
    (``UnfinishedCopy``) opens only for these. An ``InvalidRequest`` also says
    which extra is not installed. It blocks while it connects; the engine is safe in any
    thread, and is closed by ``close``. No message holds the URL: it may have a
    password in it.
    """
    if new is not None:
        return open_new(url, new)
    engine = _open(url, None, read_only=read_only)
    try:
        if not read_only:
            check_state(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def open_new(url: str, new: NewLog) -> LogEngine:
    """Create a log, and open it whatever its metadata say of its state."""
    return _open(url, new, read_only=False)


def open_in_any_state(url: str) -> LogEngine:
    """Open a log for writing, also one that is not to be served from."""
    return _open(url, None, read_only=False)


def group_of(url: str) -> str:
    """Return the group that a log's URL names; raises ``InvalidRequest``."""
    return _parts(url)[1]


def _open(url: str, new: NewLog | None, *, read_only: bool) -> LogEngine:
    scheme, group, options = _parts(url)
    if scheme == "sqlite":
        return _open_sqlite(url, group, options, new, read_only)
    if scheme.partition("+")[0] in _REDIS:
        return _open_redis(url.partition("?")[0], group, options, new, read_only)
    if scheme in _ETCD:
        return _open_etcd(url.partition("?")[0], group, options, new, read_only)
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url, group, new, read_only)
    raise InvalidRequest(
        f"{scheme!r} is none of sqlite:///file?group=NAME, redis://host?group=NAME, "
        "etcd://host1,host2,host3?group=NAME, postgresql://host/database?group=NAME"
    )


def accept_loss(url: str, who: str, why: str) -> str:
    """Have a log go on that may have lost entries, and so stopped; why it stopped.

    Empty, and nothing is changed, where it has not stopped. Processes that knew more
    than is there stay away: they are started anew. Raises a ``LogError``.
    """
    scheme, group, options = _parts(url)
    if scheme in _ETCD:
        from curp.log._etcd.accept_loss import accept as accept_in_etcd

        etcd = _etcd_address(url.partition("?")[0], options)
        return accept_in_etcd(etcd, group, who, why)
    if scheme == "sqlite":
        from curp.log._sqlite.accept_loss import accept as accept_of_file

        return accept_of_file(_file_of(url, options)[0], group, who, why)
    if scheme not in ("postgresql", "postgres"):
        raise InvalidRequest("a log in Redis does not stop for everyone: nothing to accept")
    address = _postgres_address(url)
    from curp.log._postgres.accept_loss import accept

    return accept(address, group, who, why)


def _parts(url: str) -> tuple[str, str, dict[str, str]]:
    """Return a URL's scheme, group, and other options; raises ``InvalidRequest``."""
    scheme, _, _ = url.partition(":")
    try:
        given = parse_qs(urlsplit(url).query, strict_parsing=True)
        groups = given.pop("group", [])
    except ValueError:
        groups = []
    if len(groups) != 1 or len(groups[0].encode()) > 256 or set(groups[0]) & set("{}"):
        raise InvalidRequest(
            "the URL of a log names its group, in up to 256 bytes without braces: ?group=NAME"
        )
    return scheme, groups[0], {name: values[-1] for name, values in given.items()}


def _open_sqlite(
    url: str, group: str, options: dict[str, str], new: NewLog | None, read_only: bool
) -> LogEngine:
    from curp.log._sqlite import SqliteEngine

    path, timeout_s = _file_of(url, options)
    return SqliteEngine(path, group, new=new, read_only=read_only, timeout_s=timeout_s)


def _file_of(url: str, options: dict[str, str]) -> tuple[Path, float]:
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    try:
        timeout_s = float(options.pop("timeout_s", "5"))
    except ValueError:
        timeout_s = -1.0
    if parts.netloc or not path or options or not 0 <= timeout_s < float("inf"):
        raise InvalidRequest(
            "a log file's URL is sqlite:///file?group=NAME, with timeout_s or none"
        )
    return Path(path), timeout_s


def _open_redis(
    base: str, group: str, options: dict[str, str], new: NewLog | None, read_only: bool
) -> LogEngine:
    try:
        from curp.log._redis import RedisEngine
        from rifl._stores.redis.address import RedisAddress
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"redis:// needs the extra rifl-grpc[redis]: {error}") from error
    replicas = options.pop("replicas", "0")
    unknown = options.keys() & {"namespace", "beat_s", "dead_after_s"}
    if not replicas.isdecimal() or unknown:
        raise InvalidRequest("of a log's URL: replicas is a number, and namespace is not known")
    try:
        address = RedisAddress.parse(base + (f"?{urlencode(options)}" if options else ""))
    except UnsupportedStore as error:
        raise InvalidRequest(str(error)) from None
    return RedisEngine(address, group, new=new, read_only=read_only, replicas=int(replicas))


def _open_etcd(
    base: str, group: str, options: dict[str, str], new: NewLog | None, read_only: bool
) -> LogEngine:
    from curp.log._etcd import EtcdEngine

    return EtcdEngine(_etcd_address(base, options), group, new=new, read_only=read_only)


def _etcd_address(base: str, options: dict[str, str]) -> EtcdAddress:
    from sharedlog._engines.etcd.address import EtcdAddress

    return EtcdAddress.parse(base, options, GROUPS, prefix="curp")


def _open_postgres(url: str, group: str, new: NewLog | None, read_only: bool) -> LogEngine:
    address = _postgres_address(url)
    from curp.log._postgres import PostgresEngine

    return PostgresEngine(address, group, new=new, read_only=read_only)


def _postgres_address(url: str) -> PostgresAddress:
    try:
        from rifl._stores.postgres.address import PostgresAddress
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
    base, _, query = url.partition("?")
    # As they are written: libpq has rules of its own for what they mean.
    options = [option for option in query.split("&") if option.partition("=")[0] != "group"]
    names = {option.partition("=")[0] for option in options}
    if names & {"beat_s", "dead_after_s"}:
        raise InvalidRequest("of a log's URL: beat_s and dead_after_s are not known")
    if "schema" not in names:
        options.append("schema=curp")
    try:
        return PostgresAddress.parse(f"{base}?{'&'.join(options)}")
    except (UnsupportedStore, ValueError):
        # The errors' texts may quote the URL.
        raise InvalidRequest("not a PostgreSQL URL we understand") from None
