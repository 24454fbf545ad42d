"""Notes of calls that may kill a leader, made before they run (DESIGN §7, invariant 12)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from curp._core.poison import Case, PoisonWatch
from rifl.core._serving.namespace import is_namespace
from rifl.core._shared.call import Call
from rifl.core._shared.identity import RpcId

_MOST = 256
# Longer than callers wait before they ask again.
_WARY_S = 60.0


class NoteDown(NamedTuple):
    """Put into the engine which noted calls run now, and which were set aside."""

    notes: tuple[Case, ...]
    closed: tuple[RpcId, ...]
    configuration: int


class PoisonNotes:
    """Notes, in the engine, of calls that may have killed a leader before.

    A first attempt is not noted, which would cost each call an append. But a call that
    kills its leader is sent again by its client, and that attempt is: it is new to the
    leader though it is not its first, which is rare while leaders live.

    1. A noted call runs only when the engine has its note.
    2. The note goes when the call has ended; later is safe, and costs a suspicion.
    3. In a careful leadership one noted call runs at a time: what the next leader finds
       noted then died alone. It is asked for its note when its turn on its conflict
       keys has come, so that no call holds a note while it waits for a turn.

    Not thread-safe. A ``token`` is what a caller waits on; an ``attempt`` is one call of
    its.
    """

    def __init__(self, watch: PoisonWatch, now: float = 0.0) -> None:
        """``now``: when the leadership begins, seconds."""
        self.watch = watch
        self._wary_until = now + _WARY_S if watch.wary else now
        # Whether every call must be looked at.
        self.alert = watch.wary or bool(watch.suspects)
        self._waiting: deque[tuple[Any, dict[Any, Case]]] = deque()
        self._granted: list[tuple[Any, dict[Any, Case]]] = []
        self._running: dict[Any, Case] = {}
        self._closed: list[RpcId] = []
        # Whether the engine has other notes than these.
        self._stale = False
        self._writing: NoteDown | None = None

    def watches(self, call: Call, now: float) -> bool:
        """Whether a call that is new here is noted."""
        if call.attempt > 1 or call.rpc_id in self.watch.suspects:
            return True
        # Its caller may have no way to say that it asks again.
        return now < self._wary_until and is_namespace(call.client_id)

    @property
    def any(self) -> bool:
        """Whether a call is noted, or waits for it."""
        return bool(self._running or self._waiting)

    def ask(self, token: Any, cases: Mapping[Any, Case]) -> None:
        """Ask for a note of calls that begin together."""
        self._waiting.append((token, dict(cases)))

    def ended(self, attempt: Any) -> None:
        """Handle a call that ended, or does not begin."""
        if self._running.pop(attempt, None) is not None:
            self._stale = True
        for _, cases in (*self._waiting, *self._granted):
            cases.pop(attempt, None)

    def close(self, rpc_id: RpcId) -> None:
        """Handle that a call was set aside."""
        self._closed.append(rpc_id)
        self._stale = True

    def urgent(self) -> bool:
        """Return whether a call waits for a note that can be given now."""
        if self._writing is not None or not self._waiting:
            return False
        return not self._running if self.watch.careful else len(self._running) < _MOST

    def due(self) -> bool:
        """Whether there is anything to be put down."""
        return self._writing is None and (self._stale or self.urgent())

    def take(self, configuration: int) -> NoteDown:
        """Begin to put down what is due; the same again until that is known."""
        if self._writing is None:
            while self.urgent() and not (self.watch.careful and self._granted):
                granted = self._waiting.popleft()
                self._granted.append(granted)
                self._running |= granted[1]
            notes = tuple(self._running.values())
            self._writing = NoteDown(notes, tuple(self._closed), configuration)
            self._stale = False
        return self._writing

    def written(self) -> Sequence[Any]:
        """Handle that the notes are stored; return the tokens of the calls that may begin."""
        if self._writing is not None:
            del self._closed[: len(self._writing.closed)]
        self._writing = None
        granted, self._granted = self._granted, []
        return [token for token, _ in granted]

    def again(self) -> None:
        """Handle that notes being stored, if any, may not have been; store them again."""
        if self._writing is not None:
            self._writing, self._stale = None, True

    def waiting(self) -> list[Any]:
        """Return the tokens of who was not told to begin."""
        return [token for token, _ in (*self._granted, *self._waiting)]
