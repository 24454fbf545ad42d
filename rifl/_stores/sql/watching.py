"""The watch over calls that run elsewhere: a database without messages is asked again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from _rifl_ground.log import get_logger
from rifl._stores.shared.backend import BackendError
from rifl._stores.sql.rows import Identity

_log = get_logger("rifl.store")
POLL_S = 0.03
# After so long whoever waits asks for the call itself, and is watched for again if it still runs.
_MOST_S = 60.0
_AT_ONCE = 100


class _Watched(NamedTuple):
    identity: Identity
    since: float


class Watching:
    """Tells when attempts of other replicas have ended, in a thread of its own.

    ``running`` returns which of these calls run, by their attempts' tokens. Nothing is asked
    while nobody waits.
    """

    def __init__(
        self,
        running: Callable[[list[Identity]], set[bytes]],
        wake: Callable[[bytes], None],
        closing: threading.Event,
    ) -> None:
        self._running = running
        self._wake = wake
        self._closing = closing
        self._lock = threading.Lock()
        self._watched: dict[bytes, _Watched] = {}
        self._some = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-watching", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after ``closing`` was set."""
        self._some.set()
        self._thread.join()

    def note(self, token: bytes, identity: Identity) -> None:
        """Watch over an attempt that ran a moment ago."""
        with self._lock:
            self._watched.setdefault(token, _Watched(identity, time.monotonic()))
        self._some.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            if self._closing.wait(POLL_S):
                return
            with self._lock:
                watched = dict(self._watched)
                if not watched:
                    self._some.clear()
                    continue
            try:
                ended = self._ended(watched)
            except BackendError as error:
                _log.debug("not_watched", error=str(error))
                continue
            with self._lock:
                for token in ended:
                    self._watched.pop(token, None)
            for token in ended:
                self._wake(token)

    def _ended(self, watched: dict[bytes, _Watched]) -> Iterable[bytes]:
        calls = [each.identity for each in watched.values()]
        running: set[bytes] = set()
        for at in range(0, len(calls), _AT_ONCE):
            running |= self._running(calls[at : at + _AT_ONCE])
        old = time.monotonic() - _MOST_S
        return [
            token for token, each in watched.items() if token not in running or each.since < old
        ]
