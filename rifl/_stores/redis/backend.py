"""The backend over Redis: each request a script call, to the store that it was."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import redis

from _rifl_ground.log import get_logger
from _rifl_ground.redis.address import Topology
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.lua import Script
from _rifl_ground.redis.settings import ServerNotDurable
from rifl._stores.base import Unresolved
from rifl._stores.redis.combining import AioRequestCombiner, RequestCombiner
from rifl._stores.redis.packed_connection import AioPackedConnection, PackedConnection
from rifl._stores.redis.script_calls import Sent, rounds, steps_of
from rifl._stores.redis.scripts import ENDS, EXPIRE
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.shared.backend import (
    TRIES_TAKE,
    BackendError,
    NotCarriedOut,
    Undurable,
    WentBackwards,
    ask_in_turn,
    patience,
)
from rifl._stores.shared.requests import Claim, Finish, FinishUnclaimed, MoveRows
from rifl.core._serving.namespace import is_namespace

_log = get_logger("rifl.store")

_SUBSCRIBE_TIMEOUT_S = 10.0
# How long the listener takes at most to notice that the store closes.
_LISTEN_S = 0.1
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0


# A cluster's own is no RedisError, and ``ClusterClient`` does not see this one.
_LOST = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)


class IncarnationListener:
    """Tells what the store sends to one incarnation, in a thread of its own.

    ``wake`` is told the token of an attempt that ended, ``resubscribed`` that messages may
    have been missed: a connection begins to listen. ``closing``: it ends once this is set.
    """

    def __init__(
        self,
        clients: Clients,
        channel: str,
        wake: Callable[[bytes], None],
        resubscribed: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        self._clients = clients
        self._channel = channel
        self._wake = wake
        self._resubscribed = resubscribed
        self._closing = closing
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-listener", daemon=True)

    def start(self) -> None:
        """Listen; returns once that is confirmed, so that no wake is missed."""
        self._thread.start()
        if not self._subscribed.wait(_SUBSCRIBE_TIMEOUT_S):
            raise BackendError("no subscription to the store's messages could be made")

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(_SUBSCRIBE_TIMEOUT_S)

    def _run(self) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            pubsub = self._clients.blocking.pubsub()
            try:
                pubsub.subscribe(self._channel)
                while not self._closing.is_set():
                    message = pubsub.get_message(timeout=_LISTEN_S)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        # Also after a connection that redis-py made anew by itself.
                        self._resubscribed()
                        self._subscribed.set()
                        delay_s = _FIRST_RETRY_S
                    elif message["type"] == "message":
                        self._wake(message["data"])
            except (*_LOST, ValueError) as error:
                _log.debug("listener_lost", error=str(error))
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
            finally:
                pubsub.close()


# Of clients on a cluster: those of one have their keys in one slot, with an index beside them.
BUCKETS = 256
_LOOKED_AT_ONCE = 200
# Redis does nothing else meanwhile.
_KEYS_AT_ONCE = 500


class Scripts(Protocol):
    """Who runs scripts: the backend."""

    def run(self, script: Script, client_id: int | None, arguments: list[Any]) -> list[Any]:
        """Run a script, blocking; returns status and values. Raises ``BackendError``."""


def sweep_keys(scripts: Scripts, lost: bytes, limit: int) -> int:
    """Look at the clients and namespaces that are due; return how many keys went.

    Any number of replicas may do so at once. A client whose keys are retained for
    a time is in the index, no later than the first of them is over; each look says
    when the next one is, and the index is moved only if it was not filed meanwhile.
    """
    reply = scripts.run(ENDS, None, ["due", _LOOKED_AT_ONCE])
    lived, count = reply[1], int(reply[2])
    living, due = reply[3 : 3 + count], reply[3 + count :]
    gone = 0
    for client_id, seen in zip(due[::2], due[1::2], strict=True):
        look: bytes = b""
        while gone < limit:
            wanted = min(_KEYS_AT_ONCE, limit - gone)
            arguments = [wanted, lost, int(is_namespace(int(client_id))), lived, *living]
            reply = scripts.run(EXPIRE, int(client_id), arguments)
            gone += int(reply[1])
            look = reply[2] if reply[0] == b"look" else b""
            if int(reply[1]) < wanted:
                break
        else:
            return gone
        scripts.run(ENDS, None, ["move", client_id, seen, look])
    return gone


# What every call asks for; all else is rare, or must not wait.
_TOGETHER = (Claim, Finish, FinishUnclaimed, MoveRows)
# See the scripts' prelude.
_NOT_KEPT = -1
_NOT_COMPARED = -2
_NO_SCRIPT = redis.exceptions.NoScriptError


class _OfLoop(NamedTuple):
    """What the tasks of an event loop meet at, and the connection they share."""

    together: AioRequestCombiner
    line: AioPackedConnection | None


class RedisBackend:
    """``Backend`` over Redis.

    Every script is told the store's id and the highest position seen here, and
    refuses if the store is another or behind: it restarted empty, or is a replica
    that lacks what its primary had acknowledged. From then on every request raises
    ``WentBackwards``: running a call again could double it. On a cluster there is no
    position, since each slot has its own server: only the id is compared.
    """

    def __init__(self, address: RedisStoreAddress, clients: Clients, store_id: bytes) -> None:
        self.store_id = store_id
        self.clients = clients
        self.clustered = address.clustered
        self.longest_s = TRIES_TAKE * address.timeout_s
        self._address = address
        self._namespace = address.namespace
        self._global = f"{address.namespace}:{{store}}:"
        # The same, and what every script is told beside it, as they travel.
        self._shared = self._global.encode()
        self._meta = self._shared + b"meta"
        self._before_id = f"{address.namespace}:".encode()
        self._position = _NOT_KEPT if address.clustered else 0
        self._stopped = ""
        self._closing = threading.Event()
        self._listener: IncarnationListener | None = None
        # Calls have a connection of their own, where it is always to the same server. Batches, and
        # what calls ask besides, take turns on another one if their time is bounded: redis-py's
        # pool waits for as long as it was made to.
        self._has_line = address.topology is Topology.SERVER
        self._line: PackedConnection | None = None
        self._second_line: PackedConnection | None = None
        if self._has_line:
            self._line = PackedConnection(clients.blocking.connection_pool)
            self._second_line = PackedConnection(clients.blocking.connection_pool)
        self._turn = threading.Lock()
        self._together = RequestCombiner(self._ask_alone, self._ask_together)
        self._aio_together: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = (
            weakref.WeakKeyDictionary()
        )

    # -- Backend ------------------------------------------------------------------------

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request, blocking."""
        if isinstance(request, _TOGETHER) and not self.clustered:
            return self._together.ask(request, within_s)
        return self._ask(request) if within_s is None else self._ask_apart(request, within_s)

    async def ask_async(self, request: Any) -> Any:
        """Carry out a request on the running event loop."""
        if not isinstance(request, _TOGETHER) or self.clustered:
            return await self._ask_async(request)
        loop = asyncio.get_running_loop()
        mine = self._aio_together.get(loop)
        if mine is None:
            mine = self._aio_together[loop] = self._of_loop()
        return await mine.together.ask(request)

    def _of_loop(self) -> _OfLoop:
        if not self._has_line:
            return _OfLoop(AioRequestCombiner(self._ask_async, self.ask_all_async), None)
        line = AioPackedConnection(self.clients.awaiting().connection_pool)

        async def ask_together(requests: Sequence[Any]) -> list[Any]:
            return await self._all_async(requests, partial(self._exchange_async, line))

        async def ask_alone(request: Any) -> Any:
            return await self._ask_async(request, partial(self._run_on_line_async, line))

        return _OfLoop(AioRequestCombiner(ask_alone, ask_together), line)

    def _ask_alone(self, request: Any, within_s: float | None) -> Any:
        if self._line is None:
            return self._ask(request) if within_s is None else self._ask_apart(request, within_s)
        self._line.within_s = within_s
        return self._ask(request, partial(self._run_on_line, self._exchange_alone))

    def _ask_apart(self, request: Any, within_s: float) -> Any:
        """Carry out a request beside those that meet."""
        limit_s = self._patience(within_s)
        if self._second_line is None:
            return self._ask(request, partial(self.run, within_s=limit_s))
        return self._ask(
            request, partial(self._run_on_line, partial(self._exchange_apart, limit_s))
        )

    def _patience(self, within_s: float) -> float:
        return patience(within_s, self._address.timeout_s)

    def _ask_together(self, requests: Sequence[Any], within_s: float | None) -> list[Any]:
        if self._line is None:
            return self.ask_all(requests, within_s)
        self._line.within_s = within_s
        return self._all(requests, self._exchange_alone)

    def _run_on_line(
        self,
        exchange: Callable[[Sent], list[Any]],
        script: Script,
        client_id: int | None,
        arguments: list[bytes],
    ) -> list[Any]:
        """Do what ``run`` does, on a connection that is not the pool's."""
        parts = self.invocation(script, client_id, arguments)
        self._check()
        try:
            (reply,) = exchange([(script, parts)])
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._accept(_told(reply))

    def _ask(self, request: Any, run: Callable[..., list[Any]] | None = None) -> Any:
        run = run or self.run
        steps = steps_of(request)
        try:
            step = next(steps)
            while True:
                step = steps.send(run(*step))
        except StopIteration as stop:
            return stop.value

    async def _run_on_line_async(
        self,
        line: AioPackedConnection,
        script: Script,
        client_id: int | None,
        arguments: list[bytes],
    ) -> list[Any]:
        parts = self.invocation(script, client_id, arguments)
        self._check()
        try:
            (reply,) = await self._exchange_async(line, [(script, parts)])
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._accept(_told(reply))

    async def _ask_async(
        self, request: Any, run: Callable[..., Awaitable[list[Any]]] | None = None
    ) -> Any:
        run = run or self._run_async
        steps = steps_of(request)
        try:
            step = next(steps)
            while True:
                step = steps.send(await run(*step))
        except StopIteration as stop:
            return stop.value

    def ask_all(self, requests: Sequence[Any], within_s: float | None = None) -> list[Any]:
        """Carry out requests in one pipeline; one by one on a cluster."""
        if self.clustered:
            return ask_in_turn(self.ask, requests, within_s, self._address.timeout_s)
        limit_s = None if within_s is None else self._patience(within_s)
        if limit_s is None or self._second_line is None:
            return self._all(requests, partial(self._pipelined, limit_s))
        return self._all(requests, partial(self._exchange_apart, limit_s))

    def _pipelined(self, within_s: float | None, sent: Sent) -> list[Any]:
        return self.clients.in_room(lambda: _pipelined(self.clients.blocking, sent), within_s)

    def _exchange_alone(self, sent: Sent) -> list[Any]:
        line: Any = self._line
        return self._exchange(sent, line)

    def _exchange_apart(self, within_s: float, sent: Sent) -> list[Any]:
        if not self._turn.acquire(timeout=within_s):
            raise NotCarriedOut("the call's time was over before the store was asked")
        try:
            line: Any = self._second_line
            line.within_s = within_s
            return self._exchange(sent, line)
        finally:
            self._turn.release()

    def _exchange(self, sent: Sent, line: PackedConnection) -> list[Any]:
        replies = line.exchange(sent)
        if left := _without_script(sent, replies):
            for script in {sent[at][0] for at in left}:
                self.clients.blocking.script_load(script.text)
            again = [sent[at] for at in left]
            _put(replies, left, line.exchange(again))
        return replies

    def _all(self, requests: Sequence[Any], carry: Callable[[Sent], list[Any]]) -> list[Any]:
        steps = rounds(requests, self.invocation, self._accept)
        try:
            sent = next(steps)
            while True:
                self._check()
                sent = steps.send(carry(sent))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BackendError as error:
            return [error] * len(requests)
        except (redis.RedisError, OSError) as error:
            return [_failed(error)] * len(requests)

    async def ask_all_async(self, requests: Sequence[Any]) -> list[Any]:
        """The same on the running event loop."""
        if self.clustered:
            return [await _reply_async(self.ask_async, request) for request in requests]
        return await self._all_async(requests, self._pipelined_async)

    async def _pipelined_async(self, sent: Sent) -> list[Any]:
        client = self.clients.awaiting()
        async with self.clients.room_awaiting():
            replies: list[Any] = await _pipeline(client, sent).execute(raise_on_error=False)
            if left := _without_script(sent, replies):
                for script in {sent[at][0] for at in left}:
                    await client.script_load(script.text)
                again = _pipeline(client, [sent[at] for at in left])
                _put(replies, left, await again.execute(raise_on_error=False))
        return replies

    async def _exchange_async(self, line: AioPackedConnection, sent: Sent) -> list[Any]:
        replies = await line.exchange(sent)
        if left := _without_script(sent, replies):
            for script in {sent[at][0] for at in left}:
                await self.clients.awaiting().script_load(script.text)
            _put(replies, left, await line.exchange([sent[at] for at in left]))
        return replies

    async def _all_async(
        self, requests: Sequence[Any], carry: Callable[[Sent], Awaitable[list[Any]]]
    ) -> list[Any]:
        steps = rounds(requests, self.invocation, self._accept)
        try:
            sent = next(steps)
            while True:
                self._check()
                sent = steps.send(await carry(sent))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BackendError as error:
            return [error] * len(requests)
        except (redis.RedisError, OSError) as error:
            return [_failed(error)] * len(requests)

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """Delete keyed calls whose retention has passed; return how many."""
        return sweep_keys(self, lost, limit)

    def unresolved(self) -> Unresolved:
        """Count what no operator has settled; blocks. Raises ``BackendError``."""
        living = self._living()
        found: list[tuple[bytes, bytes, bytes]] = []
        for client_id in range(BUCKETS) if self.clustered else (None,):
            reply = self.run(ENDS, client_id, ["unresolved"])[1:]
            found += zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        # One that came, or went, meanwhile is no crash.
        living |= self._living()
        unknown = [(int(calls), int(age)) for owner, calls, age in found if owner not in living]
        oldest_ms = max((age for _, age in unknown), default=0)
        return Unresolved(sum(calls for calls, _ in unknown), oldest_ms / 1000)

    def _living(self) -> set[bytes]:
        try:
            return set(self.clients.blocking.hkeys(self.key("replicas")))
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error

    def look_again(self) -> str:
        """Look at the settings now and then; see ``Backend``."""
        try:
            return self.clients.weakness()
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error

    def seal(self) -> None:
        """Nothing to do: the script that found it out has done so."""

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Subscribe; returns once that is confirmed, so that no wake is missed."""
        self._listener = IncarnationListener(
            self.clients, f"{self._global}wake:{owner}", wake, resubscribed, self._closing
        )
        self._listener.start()

    def close(self) -> None:
        """Stop listening and close the clients."""
        self._closing.set()
        if self._listener is not None:
            self._listener.join()
        for line in (self._line, self._second_line):
            if line is not None:
                line.close()
        for loop, mine in list(self._aio_together.items()):
            if mine.line is not None:
                mine.line.close(loop)
        self.clients.close()

    # -- scripts ------------------------------------------------------------------------

    def run(
        self,
        script: Script,
        client_id: int | None,
        arguments: list[Any],
        within_s: float | None = None,
    ) -> list[Any]:
        """Run a script, blocking; returns status and values. Raises ``BackendError``.

        ``within_s``: how long to wait, see ``Clients.in_room``.
        """
        parts = self.invocation(script, client_id, arguments)
        self._check()
        client = self.clients.blocking
        try:
            reply = self.clients.in_room(lambda: script.run(client, parts), within_s)
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._accept(reply)

    async def _run_async(
        self, script: Script, client_id: int | None, arguments: list[Any]
    ) -> list[Any]:
        parts = self.invocation(script, client_id, arguments)
        self._check()
        client = self.clients.awaiting()
        try:
            async with self.clients.room_awaiting():
                try:
                    reply = await client.evalsha(script.sha, *parts)
                except redis.exceptions.NoScriptError:
                    reply = await client.eval(script.text, *parts)
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._accept(reply)

    def invocation(
        self, script: Script, client_id: int | None, arguments: list[Any], *, late: bool = False
    ) -> list[Any]:
        """Return what follows the script in EVAL: keys and arguments, bytes if those are.

        ``late``: it is run with others that cannot be undone any more.
        """
        shared = self._shared
        if self.clustered:
            base = shared if client_id is None else self.base(client_id).encode()
            second, seen = base + b"none", self._position
        else:
            base = shared if client_id is None else b"%b{%d}:" % (self._before_id, client_id)
            second, seen = self._meta, _NOT_COMPARED if late else self._position
        keys = (base + b"client", second)
        return [b"2", *keys, base, shared, self.store_id, b"%d" % seen, *arguments]

    def base(self, client_id: int) -> str:
        """Return how the keys of a client begin; they share a hash tag."""
        if self.clustered:
            return f"{self._bucket(client_id)}{client_id}:"
        return f"{self._namespace}:{{{client_id}}}:"

    def index_key(self, client_id: int, name: str) -> str:
        """Return a key in which calls of many clients are found, this one's among them."""
        return (self._bucket(client_id) if self.clustered else self._global) + name

    def _bucket(self, client_id: int) -> str:
        return f"{self._namespace}:{{{client_id % BUCKETS}}}:"

    def key(self, name: str) -> str:
        """Return a key of the whole store's."""
        return self._global + name

    def _accept(self, reply: list[Any]) -> list[Any]:
        if reply[0] == b"backwards":
            self._stopped = (
                "the store has lost what it acknowledged (it restarted empty, was restored, or a "
                "stale replica was promoted): calls may not be run again"
            )
            _log.critical("store_went_backwards", error=self._stopped)
            raise WentBackwards(self._stopped)
        if not self.clustered:
            # Only ever forward: two threads may write it, and a lower one is safe.
            self._position = max(self._position, int(reply[1]))
        return [reply[0], *reply[2:]]

    def _check(self) -> None:
        if self._stopped:
            raise WentBackwards(self._stopped)


def _pipelined(client: Any, sent: Sent) -> list[Any]:
    replies: list[Any] = _pipeline(client, sent).execute(raise_on_error=False)
    if left := _without_script(sent, replies):
        for script in {sent[at][0] for at in left}:
            client.script_load(script.text)
        again = _pipeline(client, [sent[at] for at in left])
        _put(replies, left, again.execute(raise_on_error=False))
    return replies


def _pipeline(client: Any, sent: Sent) -> Any:
    # Not a transaction: each script is one step, and a long one would block all others.
    pipeline = client.pipeline(transaction=False)
    for script, parts in sent:
        pipeline.evalsha(script.sha, *parts)
    return pipeline


def _without_script(sent: Sent, replies: list[Any]) -> list[int]:
    return [at for at, reply in enumerate(replies) if isinstance(reply, _NO_SCRIPT)]


def _told(reply: Any) -> Any:
    if isinstance(reply, redis.RedisError):
        raise _failed(reply) from reply
    return reply


def _put(replies: list[Any], places: list[int], found: list[Any]) -> None:
    for at, reply in zip(places, found, strict=True):
        replies[at] = reply


async def _reply_async(ask: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
    try:
        return await ask(request)
    except BackendError as error:
        return error


def _failed(error: Exception) -> BackendError:
    if isinstance(error, ServerNotDurable):
        return Undurable(str(error))
    # Its text names hosts and commands at most, never a credential.
    return BackendError(f"{type(error).__name__}: {error}")
