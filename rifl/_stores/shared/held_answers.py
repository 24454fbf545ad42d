"""Kept answers over a shared store, which alone knows of clients of other servers (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from rifl._stores.held_answers import HeldAnswers
from rifl._stores.shared.backend import Backend, BackendError
from rifl._stores.shared.requests import LookAtClient, SeenClient
from rifl._stores.shared.steps import Rule, Steps
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.errors import StoreUnavailable

_MOST_HOLDERS = 65_536
# With each beat so many clients have their turn, and of these so many are asked about that made
# no call here for so long: what they acknowledged, or that they ended, is told elsewhere.
_TURNS, _ASKED = 500, 100
_SILENT_S = 2.0


class SharedAnswers(HeldAnswers):
    """Asks the store whom a lease counts for, once for each client: another server granted it.

    And, after each beat, what counted clients have acknowledged elsewhere, and which are gone.
    """

    def __init__(self, backend: Backend, *, clock: Callable[[], float]) -> None:
        self._backend = backend
        # Bounded: when it is full it is emptied.
        self._holders: dict[int, bytes] = {}
        # Counted before the store was asked: while nothing was counted it was not.
        self._unknown: set[int] = set()
        super().__init__(clock=clock, holder=lambda client_id: self._holders.get(client_id, b""))

    def ask(self, attempt: Attempt) -> Later | None:
        """Ask the store, if it was not asked yet."""
        call = attempt.call
        if call.key is not None:
            return None
        if call.client_id not in self._holders:
            self._unknown.add(call.client_id)
        self._heard_of(call.client_id)
        return Steps(self._backend, self._asking()) if self._unknown else None

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""
        super().note(attempt, size)
        if not self.active:
            return
        client_id = attempt.call.client_id
        self._heard_of(client_id)
        if client_id in self._clients and client_id not in self._holders:
            self._unknown.add(client_id)

    def look(self) -> None:
        """Look at some of the counted clients; blocks."""
        if not self.active:
            return
        with self._lock:
            before, looked_at = self._clock() - _SILENT_S, list[int]()
            for client_id in list(islice(self._clients, _TURNS)):
                # Behind those that had no turn.
                held = self._clients[client_id] = self._clients.pop(client_id)
                if held.heard_at <= before:
                    held.heard_at = self._clock()
                    looked_at.append(client_id)
                if len(looked_at) >= _ASKED:
                    break
        if not looked_at:
            return
        found = self._backend.ask_all([LookAtClient(client_id) for client_id in looked_at])
        for client_id, seen in zip(looked_at, found, strict=True):
            if not isinstance(seen, BackendError):
                self._learn(client_id, seen)

    def _heard_of(self, client_id: int) -> None:
        held = self._clients.get(client_id)
        if held is not None:
            held.heard_at = self._clock()

    def _asking(self) -> Rule:
        for client_id in list(self._unknown):
            try:
                self._learn(client_id, (yield LookAtClient(client_id)))
            except BackendError as error:
                raise StoreUnavailable(f"the client cannot be read: {error}") from error

    def _learn(self, client_id: int, seen: SeenClient | None) -> None:
        with self._lock:
            self._unknown.discard(client_id)
            if seen is None:
                self._holders.pop(client_id, None)
                self._drop(client_id)
                return
            if len(self._holders) >= _MOST_HOLDERS:
                self._holders.clear()
            self._holders[client_id] = seen.holder
            held = self._clients.get(client_id)
            if held is None:
                return
            if held.holder != seen.holder:
                size = held.bytes
                self._add(held, -size)
                held.holder = seen.holder
                self._add(held, size)
            self._acknowledge(client_id, held, seen.first_incomplete, seen.completed)
