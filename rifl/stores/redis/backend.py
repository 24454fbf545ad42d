"""Requests as script calls, blocking or awaiting (see ``scripts``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import redis

from lease_server.log import get_logger
from rifl.core.call import Call
from rifl.core.policy import Kind
from rifl.stores.redis.address import RedisAddress
from rifl.stores.redis.clients import Clients
from rifl.stores.redis.scripts import BEAT, CLAIM, FINISH, Script
from rifl.stores.shared.backend import BackendError, WentBackwards
from rifl.stores.shared.requests import (
    Abandon,
    Beat,
    Claim,
    Claimed,
    Ending,
    Finish,
    Finished,
    Found,
    Look,
)

__all__ = ["RedisBackend", "finish_arguments", "member_of"]

_log = get_logger("rifl.store")
_SUBSCRIBE_TIMEOUT_S = 10.0
# How long the listener takes at most to notice that the store closes.
_LISTEN_S = 0.1
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_UNSEEN = -1


class RedisBackend:
    """``Backend`` over Redis.

    Every script is told the store's id and the highest position seen here, and
    refuses if the store is another or behind: it restarted empty, or is a replica
    that lacks what its primary had acknowledged. From then on every request raises
    ``WentBackwards``: running a call again could double it. On a cluster there is no
    position, since each slot has its own server: only the id is compared.
    """

    def __init__(self, address: RedisAddress, clients: Clients, store_id: bytes) -> None:
        self.store_id = store_id
        self.clients = clients
        self.clustered = address.clustered
        self._namespace = address.namespace
        self._global = f"{address.namespace}:{{store}}:"
        self._position = _UNSEEN if address.clustered else 0
        self._stopped = ""
        self._closing = threading.Event()
        self._listener: threading.Thread | None = None

    # -- Backend ------------------------------------------------------------------------

    def ask(self, request: Any) -> Any:
        """Carry out a request, blocking."""
        script, client_id, arguments = self._pack(request)
        return self._read(request, self.run(script, client_id, arguments))

    async def ask_async(self, request: Any) -> Any:
        """Carry out a request on the running event loop."""
        script, client_id, arguments = self._pack(request)
        parts = self.invocation(script, client_id, arguments)
        self._check()
        client = self.clients.awaiting()
        try:
            try:
                reply = await client.evalsha(script.sha, *parts)
            except redis.exceptions.NoScriptError:
                reply = await client.eval(script.text, *parts)
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._read(request, self._accept(reply))

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Subscribe; returns once that is confirmed, so that no wake is missed."""
        subscribed = threading.Event()
        self._listener = threading.Thread(
            target=self._listen,
            args=(f"{self._global}wake:{owner}", wake, resubscribed, subscribed),
            name="rifl-listener",
            daemon=True,
        )
        self._listener.start()
        if not subscribed.wait(_SUBSCRIBE_TIMEOUT_S):
            raise BackendError("no subscription to the store's messages could be made")

    def close(self) -> None:
        """Stop listening and close the clients."""
        self._closing.set()
        if self._listener is not None:
            self._listener.join(_SUBSCRIBE_TIMEOUT_S)
        self.clients.close()

    # -- scripts ------------------------------------------------------------------------

    def run(self, script: Script, client_id: int | None, arguments: list[Any]) -> list[Any]:
        """Run a script, blocking; returns status and values. Raises ``BackendError``."""
        parts = self.invocation(script, client_id, arguments)
        self._check()
        client = self.clients.blocking
        try:
            try:
                reply = client.evalsha(script.sha, *parts)
            except redis.exceptions.NoScriptError:
                reply = client.eval(script.text, *parts)
        except (redis.RedisError, OSError) as error:
            raise _failed(error) from error
        return self._accept(reply)

    def invocation(
        self, script: Script, client_id: int | None, arguments: list[Any], *, unseen: bool = False
    ) -> list[Any]:
        """Return what follows the script in EVAL: keys and arguments."""
        base = self._global if client_id is None else self.base(client_id)
        seen = _UNSEEN if unseen else self._position
        keys = [base + "client"]
        if not self.clustered:
            keys.append(self.key("meta"))
        return [len(keys), *keys, base, self._global, self.store_id, seen, *arguments]

    def base(self, client_id: int) -> str:
        """Return how the keys of a client begin; they share a hash tag."""
        return f"{self._namespace}:{{{client_id}}}:"

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

    # -- requests -----------------------------------------------------------------------

    def _pack(self, request: Any) -> tuple[Script, int | None, list[Any]]:
        if isinstance(request, Claim):
            return CLAIM, request.call.client_id, _claim_arguments(request)
        if isinstance(request, Finish | Abandon | Look):
            return FINISH, request.call.client_id, finish_arguments(request)
        if isinstance(request, Beat):
            dead = [part for entry in request.dead for part in entry]
            return BEAT, None, [request.owner, int(request.leaving), *dead]
        raise TypeError(f"not a request: {request!r}")

    def _read(self, request: Any, reply: list[Any]) -> Any:
        status = reply[0].decode()
        if isinstance(request, Claim):
            found = Found(status)
            if found is Found.RUNNING:
                return Claimed(found, reply[1], reply[2].decode(), Kind(reply[3].decode()))
            return Claimed(found, record=reply[1] if found is Found.COMPLETED else b"")
        if isinstance(request, Beat):
            return {reply[at].decode(): int(reply[at + 1]) for at in range(1, len(reply), 2)}
        ending = Ending(status)
        return Finished(ending, reply[1] if ending is Ending.STANDS else b"")

    # -- messages -----------------------------------------------------------------------

    def _listen(
        self,
        channel: str,
        wake: Callable[[bytes], None],
        resubscribed: Callable[[], None],
        subscribed: threading.Event,
    ) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            pubsub = self.clients.blocking.pubsub()
            try:
                pubsub.subscribe(channel)
                while not self._closing.is_set():
                    message = pubsub.get_message(timeout=_LISTEN_S)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        # Also after a connection that redis-py made anew by itself.
                        resubscribed()
                        subscribed.set()
                        delay_s = _FIRST_RETRY_S
                    elif message["type"] == "message":
                        wake(message["data"])
            except (redis.RedisError, OSError, ValueError) as error:
                _log.debug("listener_lost", error=str(error))
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
            finally:
                pubsub.close()


def member_of(call: Call) -> bytes:
    """Return what a call is filed under: a seq in 16 digits, or its key."""
    if call.key is None:
        return b"s%016x" % (call.seq or 0)
    return b"k" + call.key


def finish_arguments(request: Finish | Abandon | Look) -> list[Any]:
    """Return what the finish script is told."""
    member = member_of(request.call)
    if isinstance(request, Finish):
        return [member, request.token, request.record, "finish"]
    return [member, request.token, b"", "abandon" if isinstance(request, Abandon) else "look"]


def _claim_arguments(request: Claim) -> list[Any]:
    call = request.call
    return [
        member_of(call),
        b"%016x" % call.first_incomplete,
        b"".join(b"%016x%016x" % (first, last + 1) for first, last in call.completed),
        call.fingerprint or b"",
        request.kind.value,
        request.token,
        request.owner,
        int(request.refusing),
        request.window,
        request.max_keys,
        request.max_key_bytes,
        request.take_over,
        request.lost,
        call.method,
    ]


def _failed(error: Exception) -> BackendError:
    # Its text names hosts and commands at most, never a credential.
    return BackendError(f"{type(error).__name__}: {error}")
