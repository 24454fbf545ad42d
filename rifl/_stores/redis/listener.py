"""The listener: the messages that attempts have ended, on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis

from _rifl_ground.log import get_logger
from _rifl_ground.redis.clients import Clients
from rifl._stores.shared.backend import BackendError

_log = get_logger("rifl.store")
_SUBSCRIBE_TIMEOUT_S = 10.0
# How long the listener takes at most to notice that the store closes.
_LISTEN_S = 0.1
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0


class Listener:
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
            except (redis.RedisError, OSError, ValueError) as error:
                _log.debug("listener_lost", error=str(error))
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
            finally:
                pubsub.close()
