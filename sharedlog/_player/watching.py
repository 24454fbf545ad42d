"""The watching of a player: what those who watch are told, kept from doing harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.log import get_logger
from sharedlog._core.player.observer import DeliveryReport, PlayerObserver, TargetReport

_log = get_logger("sharedlog")


class PlayerWatchers:
    """Those of one player."""

    def __init__(self, player: str, observers: Sequence[PlayerObserver]) -> None:
        """``player``: its name."""
        self.player = player
        self._observers = tuple(observers)
        # Whether an observer wants to be told of each delivery.
        self.each_delivery = any(map(_wants_each, self._observers))
        self._failed: set[str] = set()

    def attached(self, report: Callable[[], list[TargetReport]]) -> None:
        """Tell the observers that the player begins."""
        self._each("attached", report)

    def detached(self, report: Callable[[], list[TargetReport]]) -> None:
        """Tell the observers that the player was closed."""
        self._each("detached", report)

    def troubled(self, target: str, cause: str) -> None:
        """Tell the observers that a target's connection was closed."""
        self._each("troubled", target, cause)

    def stopped(self, target: str, why: str) -> None:
        """Tell the observers that a target was stopped."""
        self._each("stopped", target, why)

    def buried(self, target: str) -> None:
        """Tell the observers of a dead letter."""
        self._each("buried", target)

    def _each(self, method: str, *arguments: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, method)(self.player, *arguments)
            except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                self._tell(method, error)

    def sending(self, delivery: DeliveryReport) -> list[tuple[str, str, Any] | None]:
        """Tell the observers that a message is sent; return what each one returned."""
        found: list[tuple[str, str, Any] | None] = []
        for observer in self._observers:
            begun = None
            try:
                begun = observer.sending(delivery)
            except Exception as error:  # noqa: BLE001 - as above
                self._tell("sending", error)
            found.append(begun)
        return found

    def answered(
        self,
        delivery: DeliveryReport,
        begun: Sequence[tuple[str, str, Any] | None],
        seconds: float,
        error: str,
    ) -> None:
        """Tell the observers of the answer. ``begun``: what ``sending`` returned."""
        for observer, mine in zip(self._observers, begun, strict=True):
            try:
                observer.answered(delivery, None if mine is None else mine[2], seconds, error)
            except Exception as failed:  # noqa: BLE001 - as above
                self._tell("answered", failed)

    def _tell(self, method: str, error: Exception) -> None:
        if method not in self._failed:
            self._failed.add(method)
            _log.error("observer_failed", method=method, error=repr(error))


def _wants_each(observer: PlayerObserver) -> bool:
    kind = type(observer)
    return (
        kind.sending is not PlayerObserver.sending or kind.answered is not PlayerObserver.answered
    )
