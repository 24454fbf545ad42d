"""A name that shows other processes of the machine that a replica is there (DESIGN §6)."""

from __future__ import annotations

import contextlib
import weakref

from _rifl_ground.system import HeldName, at_forks, hold_name, is_held


class Presence:
    """A name of the machine's, held until it is closed or its process ends.

    So it is for a process that is suspended, too, whose beats stand still. Where no name can be
    held, nothing shows. Containers have their own. A forked child lets its copy go.
    """

    def __init__(self, owner: str) -> None:
        self._name: HeldName | None = None
        with contextlib.suppress(OSError):
            self._name = hold_name(_name_of(owner))
        _held.add(self)

    def close(self) -> None:
        """Show it no longer."""
        held, self._name = self._name, None
        if held is not None:
            held.close()


def is_here(owner: str) -> bool:
    """Whether a process of this machine shows that it is this replica."""
    return is_held(_name_of(owner))


def _name_of(owner: str) -> str:
    return f"rifl-replica-{owner}"


def _let_go() -> None:
    for presence in list(_held):
        presence.close()


_held: weakref.WeakSet[Presence] = weakref.WeakSet()
at_forks(after_in_child=_let_go)
