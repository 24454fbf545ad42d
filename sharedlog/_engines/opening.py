"""The creating and opening of engines by their URLs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from _rifl_ground.sqlite.address import PREFIX, lone_file_of
from _rifl_ground.system import at_forks
from _rifl_ground.urls import without_driver
from sharedlog._core.errors import InvalidRequest, LogExists, NoSuchLog
from sharedlog._engines.engine import Engine
from sharedlog._engines.memory import MemoryEngine, MemoryLog

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup
    from sharedlog._engines.etcd.defragmenting import ClusterMember

_MEMORY = "memory:"
_ETCD = ("etcd", "etcds")
_REDIS = (
    *("redis", "redis+sentinel", "redis+cluster"),
    *("rediss", "rediss+sentinel", "rediss+cluster"),
    "unix",
)
_POSTGRES = ("postgresql", "postgres")
# Logs in this process's memory, by what follows ``memory:``.
_named: dict[str, MemoryLog] = {}


def create_engine(url: str, keys: Mapping[str, bytes], *, patience_s: float = math.inf) -> Engine:
    """Make an empty log where there is none, with these keys from its first moment, and open it.

    ``patience_s``: see ``open_engine``.

    ``memory:NAME`` (``memory:`` for one without a name) and ``sqlite:///FILE`` (four
    slashes: from the root); ``redis://HOST?log=NAME``, ``etcd://HOST,HOST,HOST?log=NAME``,
    ``postgresql://HOST/DATABASE?log=NAME`` (see each one's ``opening``). Raises ``LogExists``, and
    ``InvalidRequest`` for another URL.
    """
    if url.startswith(_MEMORY):
        made = MemoryLog(keys)
        name = url.removeprefix(_MEMORY)
        if name and _named.setdefault(name, made) is not made:
            raise LogExists(f"{url}: a log is there already: open it")
        return MemoryEngine(made)
    if url.startswith(PREFIX):
        from sharedlog._engines import sqlite

        path = _path(url)
        sqlite.create(path, keys)
        return sqlite.SqliteEngine(path, timeout_s=min(patience_s, sqlite.BUSY_S))
    if _scheme(url) in _REDIS:
        created: Engine = _redis().create_log(url, keys)
        return created
    if _scheme(url) in _ETCD:
        from sharedlog._engines.etcd import opening

        return opening.create_log(url, keys)
    if _scheme(url) in _POSTGRES:
        made_there: Engine = _postgres().create_log(url, keys)
        return made_there
    raise _unknown(url)


def open_engine(url: str, *, patience_s: float = math.inf) -> Engine:
    """Open the log that ``create_engine`` made; raises ``NoSuchLog``, and as that does.

    ``patience_s``: how long its user waits for an append. No attempt waits longer for its turn
    where those who write take turns.
    """
    if url.startswith(_MEMORY):
        found = _named.get(url.removeprefix(_MEMORY))
        if found is None:
            raise NoSuchLog(f"{url}: there is no such log in this process's memory")
        return MemoryEngine(found)
    if url.startswith(PREFIX):
        from sharedlog._engines import sqlite

        return sqlite.SqliteEngine(_path(url), timeout_s=min(patience_s, sqlite.BUSY_S))
    if _scheme(url) in _REDIS:
        opened: Engine = _redis().open_log(url)
        return opened
    if _scheme(url) in _ETCD:
        from sharedlog._engines.etcd import opening

        return opening.open_log(url)
    if _scheme(url) in _POSTGRES:
        opened_there: Engine = _postgres().open_log(url)
        return opened_there
    raise _unknown(url)


def accept_loss(url: str, keys: Mapping[str, bytes]) -> str:
    """Have a log go on that stopped since it lacks something; why it had, empty if it had not.

    ``keys`` are put in the same step: a new incarnation. Nothing is done to one that had not
    stopped: in Redis and in memory none does, but for those who had it open.
    """
    if url.startswith(PREFIX):
        from sharedlog._engines import sqlite

        return sqlite.accept_loss(_path(url), keys)
    if _scheme(url) in _ETCD:
        from sharedlog._engines.etcd import opening

        return opening.accept_loss(url, keys)
    if _scheme(url) in _POSTGRES:
        why: str = _postgres().accept_loss(url, keys)
        return why
    open_engine(url).close()
    return ""


def defragment(url: str) -> list[ClusterMember]:
    """Give back to the disks what is free in the cluster of an etcd log.

    ``InvalidRequest``: the log is in another store, which needs none of this.
    """
    if _scheme(url) not in _ETCD:
        raise InvalidRequest("only etcd has to be defragmented")
    from sharedlog._engines.etcd import opening

    return opening.defragment_at(url)


def examine(url: str) -> Checkup:
    """Look at a log, or at a place for one, by the checks of its opening; only reads.

    Raises ``InvalidRequest`` for a URL that names none.
    """
    if url.startswith(_MEMORY):
        raise InvalidRequest("memory: is inside its program's process: there is nothing to look at")
    if url.startswith(PREFIX):
        from sharedlog._engines.sqlite import doctor as sqlite

        return sqlite.examine(_path(url))
    if _scheme(url) in _REDIS:
        _redis()
        from sharedlog._engines.redis import doctor as redis

        return redis.examine(url)
    if _scheme(url) in _ETCD:
        from sharedlog._engines.etcd import doctor as etcd

        return etcd.examine(url)
    if _scheme(url) in _POSTGRES:
        _postgres()
        from sharedlog._engines.postgres import doctor as postgres

        return postgres.examine(url)
    raise _unknown(url)


def has_server(url: str) -> bool:
    """Whether the log of a URL is in a server, which may be about to start."""
    return not url.startswith((_MEMORY, PREFIX))


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _redis() -> ModuleType:
    try:
        from sharedlog._engines.redis import opening
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"redis:// needs the extra rifl-grpc[redis]: {error}") from error
    return opening


def _postgres() -> ModuleType:
    try:
        from sharedlog._engines.postgres import opening
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
    return opening


def _path(url: str) -> Path:
    try:
        return lone_file_of(url)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _unknown(url: str) -> InvalidRequest:
    scheme = _scheme(url)[:40]
    if scheme in ("grpc", "grpcs"):
        return InvalidRequest("this is done where the log itself is, by its own URL, not over gRPC")
    return InvalidRequest(
        f"{scheme!r} is no log's scheme: memory:, sqlite:///FILE, redis://HOST, etcd://HOST, "
        "postgresql://HOST/DATABASE, and grpc://HOST:PORT or grpcs:// of a log that a server has"
        f"{without_driver(scheme)}"
    )


def _forget() -> None:
    # A child has copies of its parent's memory.
    _named.clear()


at_forks(after_in_child=_forget)
