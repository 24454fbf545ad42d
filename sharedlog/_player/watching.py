"""The watching of a player: what those who watch are told, kept from doing harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rifl._log import get_logger
from sharedlog._core.player.observer import PlayerObserver, TargetReport

_log = get_logger("sharedlog")


class Watchers:
    """Those of one player."""

    def __init__(self, player: str, observers: Sequence[PlayerObserver]) -> None:
        """``player``: its name."""
        self._player = player
        self._observers = tuple(observers)
        self._failed: set[str] = set()

    def attached(self, report: Callable[[], list[TargetReport]]) -> None:
        """See ``PlayerObserver``."""
        self._each("attached", report)

    def detached(self, report: Callable[[], list[TargetReport]]) -> None:
        """See ``PlayerObserver``."""
        self._each("detached", report)

    def troubled(self, target: str, cause: str) -> None:
        """See ``PlayerObserver``."""
        self._each("troubled", target, cause)

    def stopped(self, target: str, why: str) -> None:
        """See ``PlayerObserver``."""
        self._each("stopped", target, why)

    def buried(self, target: str) -> None:
        """See ``PlayerObserver``."""
        self._each("buried", target)

    def _each(self, method: str, *arguments: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, method)(self._player, *arguments)
            except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                if method not in self._failed:
                    self._failed.add(method)
                    _log.error("observer_failed", method=method, error=repr(error))
