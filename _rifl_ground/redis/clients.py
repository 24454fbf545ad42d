"""The redis-py clients of one store: one for threads, one for each event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.backoff
import redis.cluster
import redis.retry
import redis.sentinel

from _rifl_ground.places import places
from _rifl_ground.redis.address import RedisAddress, Topology
from _rifl_ground.redis.bounded import act_within, bound
from _rifl_ground.redis.cluster import AioClusterClient, ClusterClient
from _rifl_ground.redis.settings import (
    WANTED,
    ServerNotDurable,
    hidden,
    refuse_weak,
    weaknesses,
)
from _rifl_ground.servers import Durability, Weakness, told

_T = TypeVar("_T")
_RETRIES = 2
# A lost connection, as after a restart. Not a reply that takes too long: the caller has waited
# for ``timeout_s`` by then.
_TRIED_AGAIN = (redis.ConnectionError,)
_PAUSES = redis.backoff.ExponentialBackoff(0.2, 0.01)
# For who listens, and for what is asked beside calls, where the pool does not wait.
_SPARE = 4
# How often settings are looked at on connections that stay.
_LOOK_EVERY_S = 2.0


class Clients:
    """Makes and keeps clients. Safe in any thread.

    Pools are bounded and block: a burst of calls waits for a connection instead of
    opening thousands, and no longer than ``timeout_s``. redis-py has such pools for a
    single server only, so behind Sentinel and on a cluster the wait is for a place.
    ``retries``: how often a command is sent again on its own, after a connection was lost.
    ``bounded``: behind Sentinel and on a cluster ``in_room`` takes a time for all waits.
    """

    def __init__(
        self, address: RedisAddress, *, retries: int = _RETRIES, bounded: bool = False
    ) -> None:
        # Whether every new connection is refused, before it is used, that leads to a server
        # which may forget: it may be another one than before.
        self._judges = False
        self._weak = ""
        self._look_at = 0.0
        self._address = address
        self._retries = retries
        self._bounded = bounded and address.topology is not Topology.SERVER
        # For a signal's handler that closes in the middle of that: each line leaves all whole.
        self._lock = threading.RLock()
        self._pool_waits = address.topology is Topology.SERVER
        self._places = (
            contextlib.nullcontext()
            if address.topology is Topology.SERVER
            else places(address.max_connections, address.timeout_s)
        )
        self._rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self.blocking: Any = self._make_blocking()
        self._awaiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = (
            weakref.WeakKeyDictionary()
        )

    def interrupted(self) -> None:
        """Use other connections from now on: one of these may have an unread reply.

        What other threads have sent is answered on the old ones, which close when unused.
        """
        self.blocking = self._make_blocking()

    def awaiting(self) -> Any:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._awaiting.get(loop)
        if client is None:
            with self._lock:
                client = self._awaiting[loop] = self._make_awaiting()
        return client

    def check_durability(self, refused: Callable[[str], Exception]) -> list[Weakness]:
        """Look at all servers' settings; new connections are looked at from then on.

        Returns what is weak at an address that says ``durability=warn``, and raises
        ``refused(why)`` otherwise. A server that hides its settings counts as weak. Raises
        redis-py's errors.
        """
        found = self.found_weak()
        if self._address.durability is Durability.REQUIRE:
            if found:
                raise refused(
                    f"{self._address}: {told(found)} (?durability=warn opens it all the same)"
                )
            self._judges = True
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        return found

    def weakness(self) -> str:
        """Return what became weak since the check, empty if nothing did.

        The servers are asked now and then, and each time while they are weak. Raises
        redis-py's errors.
        """
        if self._judges and (self._weak or time.monotonic() >= self._look_at):
            self._weak = told(self.found_weak())
            self._look_at = time.monotonic() + _LOOK_EVERY_S
        return self._weak

    def found_weak(self) -> list[Weakness]:
        """Return what is weak of all servers' settings now. Raises redis-py's errors."""
        client = self.blocking
        nodes = client.get_primaries() if self._address.clustered else [None]
        found: list[Weakness] = []
        for node in nodes:
            options = {} if node is None else {"target_nodes": node}
            settings: dict[str, str] = {}
            try:
                # One by one: servers before 7.0 take no list.
                for name in WANTED:
                    settings |= _settings(client.config_get(name, **options))
            except ServerNotDurable as error:
                found += error.found
            except redis.exceptions.ResponseError as error:
                found.append(hidden(error))
            else:
                found += weaknesses(settings)
        return found

    def in_room(self, act: Callable[[], _T], within_s: float | None = None) -> _T:
        """Act with a connection to spare; raises redis-py's ConnectionError if none comes.

        ``within_s``: how long to wait for that, and again for all that the act waits for, if the
        connections are bounded.
        """
        places = self._places
        if within_s is not None and not isinstance(places, contextlib.nullcontext):
            places = places.within(within_s)
        try:
            with places:
                return act_within(act, within_s) if self._bounded else act()
        except queue.Empty:
            raise _no_connection() from None

    @contextlib.asynccontextmanager
    async def room_awaiting(self) -> AsyncIterator[None]:
        """Have a connection to spare inside, on the running event loop."""
        if self._pool_waits:
            yield
            return
        loop = asyncio.get_running_loop()
        with self._lock:
            room = self._rooms.setdefault(loop, asyncio.Semaphore(self._address.max_connections))
        try:
            async with asyncio.timeout(self._address.timeout_s):
                await room.acquire()
        except TimeoutError:
            raise _no_connection() from None
        try:
            yield
        finally:
            room.release()

    def close(self) -> None:
        """Close what can be closed from here: other loops' clients on their loops."""
        self.blocking.close()
        with self._lock:
            clients, self._awaiting = list(self._awaiting.items()), weakref.WeakKeyDictionary()
        for loop, client in clients:
            if not loop.is_closed():
                # A loop that no longer runs never gets to it, and keeps no socket either.
                loop.call_soon_threadsafe(_close, client)

    def _common(self, retry: Any, *, blocking: bool) -> dict[str, Any]:
        address = self._address
        options = {
            "socket_timeout": address.timeout_s,
            "socket_connect_timeout": address.timeout_s,
            "socket_keepalive": True,
            "retry": retry,
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "redis_connect_func": self._begin if blocking else self._begin_async,
        }
        if address.by_path:
            # What only TCP has; redis-py's connections by path do not take it.
            del options["socket_keepalive"]
        return options

    def _make_blocking(self) -> Any:
        address = self._address
        retry = redis.retry.Retry(_PAUSES, self._retries, _TRIED_AGAIN)
        if address.topology is Topology.SERVER:
            pool = redis.BlockingConnectionPool.from_url(
                address.url,
                max_connections=address.max_connections,
                timeout=address.timeout_s,
                **self._common(retry, blocking=True),
            )
            return redis.Redis(connection_pool=pool)
        if address.topology is Topology.SENTINEL:
            sentinel = redis.sentinel.Sentinel(
                address.hosts,
                sentinel_kwargs={"socket_timeout": address.timeout_s},
                **self._named(retry, blocking=True),
            )
            primary = sentinel.master_for(
                address.primary,
                db=address.db,
                max_connections=address.max_connections + _SPARE,
            )
            if self._bounded:
                for client in (primary, *sentinel.sentinels):
                    bound(client.connection_pool)
            return primary
        options = self._named(retry, blocking=True)
        del options["retry_on_timeout"]
        # After the cluster's own greeting.
        options["redis_connect_func"] = self._look
        cluster = ClusterClient(
            startup_nodes=[redis.cluster.ClusterNode(*host) for host in address.hosts],
            max_connections=address.max_connections + _SPARE,
            **options,
        )
        if self._bounded:
            cluster.bound()
        return cluster

    def _make_awaiting(self) -> Any:
        address = self._address
        retry = redis.asyncio.retry.Retry(_PAUSES, self._retries, _TRIED_AGAIN)
        if address.topology is Topology.SERVER:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                address.url,
                max_connections=address.max_connections,
                timeout=address.timeout_s,
                **self._common(retry, blocking=False),
            )
            return redis.asyncio.Redis(connection_pool=pool)
        if address.topology is Topology.SENTINEL:
            sentinel = redis.asyncio.sentinel.Sentinel(
                list(address.hosts),
                sentinel_kwargs={"socket_timeout": address.timeout_s},
                **self._named(retry, blocking=False),
            )
            return sentinel.master_for(
                address.primary,
                db=address.db,
                max_connections=address.max_connections + _SPARE,
            )
        options = self._named(retry, blocking=False)
        del options["retry_on_timeout"], options["redis_connect_func"]
        cluster = AioClusterClient(
            startup_nodes=[redis.asyncio.cluster.ClusterNode(*host) for host in address.hosts],
            max_connections=address.max_connections + _SPARE,
            **options,
        )
        # It takes none, but hands on what its nodes' connections are made with.
        cluster.connection_kwargs["redis_connect_func"] = self._begin_async
        return cluster

    def _begin(self, connection: Any) -> None:
        connection.on_connect()
        self._look(connection)

    def _look(self, connection: Any) -> None:
        if self._judges:
            for name in WANTED:
                connection.send_command("CONFIG", "GET", name)
            replies = [_settings(connection.read_response()) for _ in WANTED]
            refuse_weak({name: value for reply in replies for name, value in reply.items()})

    async def _begin_async(self, connection: Any) -> None:
        await connection.on_connect()
        if self._judges:
            for name in WANTED:
                await connection.send_command("CONFIG", "GET", name)
            replies = [_settings(await connection.read_response()) for _ in WANTED]
            refuse_weak({name: value for reply in replies for name, value in reply.items()})

    def _named(self, retry: Any, *, blocking: bool) -> dict[str, Any]:
        """Return the options of clients that are not made from a URL."""
        address = self._address
        options = {**self._common(retry, blocking=blocking), **address.options}
        options["username"], options["password"] = address.username, address.password
        if address.tls:
            options["ssl"] = True
        return options


def what_was_said(error: Exception) -> str:
    """Return a server's error with its code in front.

    redis-py takes the codes for which it has classes off the text. From Redis 7 on, errors of
    commands within scripts have these codes, too; before, the text had the code within it.
    """
    codes = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return " ".join([*codes, str(error)][-2:])


def _settings(reply: Any) -> dict[str, str]:
    # A list in RESP 2, a map in RESP 3.
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _no_connection() -> redis.ConnectionError:
    # What redis-py's own pools say.
    return redis.ConnectionError("No connection available.")


def _close(client: Any) -> None:
    closing = asyncio.ensure_future(client.aclose())
    _CLOSING.add(closing)
    closing.add_done_callback(_CLOSING.discard)


# Codes by the classes of redis-py.
_CODES: dict[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    # Of the class before, and so after it.
    redis.exceptions.MasterDownError: "MASTERDOWN",
}


# A task without a reference may be collected before it is done.
_CLOSING: set[Any] = set()
