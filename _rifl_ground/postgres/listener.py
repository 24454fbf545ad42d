"""The listener: what is sent to a channel, heard in a thread and on a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import connect

# How long a channel that nothing is sent to takes to notice that it is over.
_POLL_S = 0.2
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0


class Listener:
    """Hears one channel until ``closing`` is set. A session that breaks is made anew.

    ``heard`` is told what was sent, ``listening`` that messages may have been missed: a session
    begins to listen; ``lost`` why one broke. All three in the thread that listens.
    """

    def __init__(
        self,
        address: PostgresAddress,
        channel: str,
        closing: threading.Event,
        *,
        heard: Callable[[bytes], None],
        listening: Callable[[], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self.channel = channel
        self._address = address
        self._statement = f'LISTEN "{channel}"'.encode()
        self._closing = closing
        self._heard, self._listening, self._lost = heard, listening, lost
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def begun(self, timeout_s: float) -> bool:
        """Wait until it listens or the timeout passes; return whether it listens."""
        return self._begun.wait(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            try:
                with connect(self._address) as session:
                    session.execute(self._statement)
                    self._listening()
                    self._begun.set()
                    delay_s = _FIRST_RETRY_S
                    while not self._closing.is_set():
                        for message in session.notifies(timeout=_POLL_S, stop_after=1):
                            self._heard(message.payload.encode())
            except (psycopg.Error, OSError) as error:
                self._lost(error)
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)
