"""Observers of a group, which are told what a replica does (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rifl.core._shared.observer import Observer, Observers

__all__ = ["GroupObserver", "GroupObservers", "GroupReport", "TakeOver"]


class GroupReport(NamedTuple):
    """A replica at one moment.

    ``role``: as ``Replica.role``; ``serves``: whether it takes calls now. Positions are
    LSNs: ``applied`` is in this replica's state, ``tail`` is the log's last (None while
    the engine does not answer); ``unsynced`` entries of the leader's have a place and are
    not in the log. ``wanted`` witnesses were asked for, ``listed`` serve. ``answers``
    counts operations executed here: answered before their entry was in the log (``fast``),
    or by the reason why not. ``engine_silent_s``: for how many seconds the log engine has
    not answered, or has failed; 0.0 if it answers.
    """

    group: str
    replica: str
    role: str
    configuration: int
    applied: int
    tail: int | None
    unsynced: int
    wanted: int
    listed: int
    answers: Mapping[str, int]
    serves: bool = False
    engine_silent_s: float = 0.0


class TakeOver(NamedTuple):
    """A recovery that ended in a leadership.

    ``seconds``: from the new number to the first call taken. ``held``: requests on the
    witness; ``replayed``: those that were in no log; ``dropped``: those without a client.
    """

    replica: str
    configuration: int
    seconds: float
    held: int
    replayed: int
    dropped: int


class GroupObserver(Observer):
    """An ``Observer`` that is told of the group, too. Subclass and override.

    Its methods are called outside all locks, in any thread, and must not block. ``committed``
    of the base is called once for each append to the log.
    """

    def group_attached(self, report: Callable[[], GroupReport]) -> None:
        """Handle a replica that starts; ``report`` looks at it, and may ask the log engine."""

    def group_detached(self, report: Callable[[], GroupReport]) -> None:
        """Handle the close of that replica."""

    def role_changed(self, replica: str, role: str) -> None:
        """Handle a new role: "leader", "standby", "recovering" or "stopped"."""

    def took_over(self, takeover: TakeOver) -> None:
        """Handle a replica that now leads and takes calls."""

    def read_waited(self, method: str, seconds: float) -> None:
        """Handle a read that waited until operations it conflicts with were in the log."""


class GroupObservers(Observers):
    """Several observers as one; an observer without the group's methods is left out of these."""

    def group_attached(self, report: Callable[[], GroupReport]) -> None:
        """See ``GroupObserver``."""
        self._tell("group_attached", report)

    def group_detached(self, report: Callable[[], GroupReport]) -> None:
        """See ``GroupObserver``."""
        self._tell("group_detached", report)

    def role_changed(self, replica: str, role: str) -> None:
        """See ``GroupObserver``."""
        self._tell("role_changed", replica, role)

    def took_over(self, takeover: TakeOver) -> None:
        """See ``GroupObserver``."""
        self._tell("took_over", takeover)

    def read_waited(self, method: str, seconds: float) -> None:
        """See ``GroupObserver``."""
        self._tell("read_waited", method, seconds)

    def _tell(self, method: str, *arguments: Any) -> None:
        for observer in self._observers:
            if not isinstance(observer, GroupObserver):
                continue
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                self._note(method, error)
