"""The reason for which a shared store refuses new calls, and who hears of it (DESIGN §6)."""

from __future__ import annotations

import enum
from collections.abc import Callable

from _rifl_ground.owned_lock import OneByOne
from rifl.core._shared.errors import Draining, RiflError, StoreUnavailable


class _State(enum.Enum):
    SERVING = "serving"
    # Not reached: by this replica, or by all.
    AWAY = "away"
    # It may forget what it acknowledges, and was not to.
    WEAK = "weak"
    DRAINING = "draining"
    # It has lost what it acknowledged: for good.
    STOPPED = "stopped"


class Refusing:
    """What new calls are refused for, if they are. Thread-safe.

    ``tell`` is called outside any lock of the store's, one call at a time, with the
    refusal when another reason holds than before, and with None when calls are taken
    again; so the last that was told is what holds.
    """

    def __init__(self, tell: Callable[[RiflError | None], None]) -> None:
        self._tell = tell
        # Whether nothing is refused: as ``refusal`` says, for who asks with every call.
        self.serving = True
        self._changes: OneByOne[None] = OneByOne()
        self._told = _State.SERVING
        self._draining = False
        self._away = ""
        self._weak = ""
        self._stopped = ""

    def drain(self, draining: bool) -> None:
        """New calls are refused from now on as draining, or no longer."""
        self._draining = draining
        self._say()

    def away(self, reason: str) -> None:
        """The store cannot be reached; empty: it is again."""
        self._away = reason
        self._say()

    def weak(self, reason: str) -> None:
        """The store may forget what it acknowledges; empty: no longer."""
        if reason != self._weak:
            self._weak = reason
            self._say()

    def stop(self, reason: str) -> None:
        """The store must not be served from any more."""
        self._stopped = reason
        self._say()

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self._draining

    @property
    def refuses(self) -> bool:
        """Whether a claim is to say so to a store that answers."""
        return self._draining or bool(self._weak)

    @property
    def absence(self) -> str:
        """Why the store cannot be reached, as the last heartbeat found; empty if it can."""
        return "" if self._stopped else self._away

    @property
    def weakness(self) -> str:
        """Why the store may forget what it acknowledges; empty if it may not."""
        return self._weak

    def refusal(self) -> RiflError | None:
        """What new calls are refused with now."""
        return self._now()[1]

    def _now(self) -> tuple[_State, RiflError | None]:
        if self._stopped:
            return _State.STOPPED, StoreUnavailable(f"the store is stopped: {self._stopped}")
        if self._draining:
            return _State.DRAINING, Draining("the server is about to stop")
        if self._weak:
            return _State.WEAK, StoreUnavailable(f"the store is not durable: {self._weak}")
        if self._away:
            return _State.AWAY, StoreUnavailable(f"the store cannot be reached: {self._away}")
        return _State.SERVING, None

    def _say(self) -> None:
        # At once, and again in turn: the last to have it is who looks last.
        self.serving = self._now()[0] is _State.SERVING
        self._changes.post(None, self._look)

    def _look(self, _: None) -> None:
        state, refusal = self._now()
        self.serving = state is _State.SERVING
        if state is not self._told:
            self._told = state
            self._tell(refusal)
