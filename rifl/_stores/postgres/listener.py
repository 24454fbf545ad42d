"""The listener: the messages that attempts have ended, on a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.connections import Pools
from rifl._stores.shared.backend import BackendError

_log = get_logger("rifl.store")
_SUBSCRIBE_TIMEOUT_S = 10.0
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_POLL_S = 0.5


class Listener:
    """Tells what the database sends to one incarnation, in a thread of its own.

    ``wake`` is told the token of an attempt that ended, ``resubscribed`` that messages may
    have been missed: a session begins to listen. ``closing``: it ends once this is set.
    """

    def __init__(
        self,
        pools: Pools,
        owner: str,
        wake: Callable[[bytes], None],
        resubscribed: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        self.channel = f"rifl_{owner}"
        self._pools = pools
        self._wake = wake
        self._resubscribed = resubscribed
        self._closing = closing
        self._subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-listener", daemon=True)

    def start(self) -> None:
        """Listen; returns once that is confirmed, so that no wake is missed."""
        self._thread.start()
        if not self._subscribed.wait(_SUBSCRIBE_TIMEOUT_S):
            raise BackendError("no session that listens could be made")

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(_SUBSCRIBE_TIMEOUT_S)

    def _run(self) -> None:
        statement = f'LISTEN "{self.channel}"'.encode()
        delay_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            try:
                with self._pools.listener() as connection:
                    connection.execute(statement)
                    self._resubscribed()
                    self._subscribed.set()
                    delay_s = _FIRST_RETRY_S
                    while not self._closing.is_set():
                        for message in connection.notifies(timeout=_POLL_S, stop_after=1):
                            self._wake(message.payload.encode())
            except (psycopg.Error, OSError) as error:
                _log.debug("listener_lost", error=str(error))
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
