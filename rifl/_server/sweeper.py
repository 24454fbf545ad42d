"""The sweeper ends clients that are not renewed, and keyed calls past their retention (§4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from _rifl_ground.log import get_logger

_log = get_logger("rifl.server")
_SWEEPS_PER_TERM = 20
_LOGGED_IDS = 20


class Expiring(Protocol):
    """The lease server, as the sweeper asks it."""

    @property
    def term_s(self) -> float:
        """The length of a lease."""

    def expire(self) -> list[int]:
        """End the leases that have ended; whose they were."""


class Swept(Protocol):
    """The store, as the sweeper tells it."""

    def clients_ended(self, client_ids: Iterable[int]) -> None:
        """Forget clients."""

    def expire_keys(self) -> None:
        """Forget keyed calls whose retention has passed."""


def sweep(store: Swept, leases: Expiring) -> list[int]:
    """End what is over, at the lease server first; whose leases ended."""
    if ended := leases.expire():
        store.clients_ended(ended)
        _log.info("clients_ended", clients=len(ended), some=ended[:_LOGGED_IDS])
    store.expire_keys()
    return ended


class ClientSweeper:
    """A thread that looks twenty times a term. ``start`` once, ``stop`` once.

    ``look`` is called in each round, too.
    """

    def __init__(self, store: Swept, leases: Expiring, look: Callable[[], None]) -> None:
        self._store = store
        self._leases = leases
        self._look = look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-sweeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what has expired stays until the next look at it."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._leases.term_s / _SWEEPS_PER_TERM):
            try:
                self._look()
                sweep(self._store, self._leases)
            except Exception:  # noqa: BLE001 - logged with its traceback
                # No other thread sweeps: the next round may work again.
                _log.exception("sweep_failed")
