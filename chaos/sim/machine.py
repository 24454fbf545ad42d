"""Model of the world: a group's application, whose state machine has the accounts (DESIGN §7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from chaos.sim.service import METHODS, Operation, decode
from curp._core.conflict_keys import covers, keys_of_values, recorded_keys
from curp._core.entries import Operation as Logged
from curp._replica.errors import Diverged
from curp._replica.services import MethodFacts
from curp.v1 import curp_pb2 as pb
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

__all__ = ["ABORTED", "Killed", "Machine", "Unreadable"]

ABORTED = CompletionRecord(code=9, details="the account does not allow it")
_READ = "/sim.Accounts/Read"
# Versions from this one on tell more.
_TELLS_MORE = 2


class Killed(Exception):
    """The handler ended its process."""


class Unreadable(Exception):
    """A snapshot is of a newer version than who reads it."""


class Machine:
    """Accounts as a function of the operations applied; what ``Services`` is to a replica."""

    def __init__(self) -> None:
        self.accounts: dict[str, tuple[int, int]] = {}
        self.application_version = 0
        # Ends the process of who runs it.
        self.die: Callable[[], None] = lambda: None
        # The last operation that changed something, and the version it made.
        self.changed: tuple[Operation, int] | None = None
        self._facts = {
            method: MethodFacts(
                pb.MethodConflicts(method=method, read_only=method == _READ, by_callable=True),
                _keys_of,
            )
            for method in METHODS
        }

    def reset(self) -> None:
        """Be as before the first entry."""
        self.accounts.clear()

    def snapshot(self) -> bytes:
        """Return all accounts, in the form of this version."""
        return json.dumps([self.application_version, self.accounts]).encode()

    def restore(self, snapshot: bytes) -> None:
        """Take what ``snapshot`` returned; ``Unreadable`` if that was of a newer version."""
        written_by, found = json.loads(snapshot)
        if written_by > self.application_version:
            raise Unreadable(f"of version {written_by}, and this is {self.application_version}")
        self.accounts = {name: (version, total) for name, (version, total) in found.items()}

    def facts(self, method: str) -> MethodFacts | None:
        """See ``Services``."""
        return self._facts.get(method)

    def reader(self, method: str) -> Callable[[bytes], Any] | None:
        """See ``Services``: no request is read twice here."""
        return None

    def keys(self, method: str, request: bytes) -> frozenset[int]:
        """See ``Services``."""
        return _keys_of(request, None)

    def covers(self, call: Call, keys: frozenset[int]) -> bool:
        """See ``Services``."""
        return covers(recorded_keys(call.conflict_keys), keys)

    def conflicts(self) -> Sequence[pb.MethodConflicts]:
        """See ``Services``."""
        return [facts.conflicts for facts in self._facts.values()]

    def replay(self, entry: Logged, *, strict: bool = True) -> None:
        """Apply an operation of the log; raises ``Diverged`` for another answer."""
        call = Call(entry.client_id, b"", entry.seq, entry.key, method=entry.method)
        again = self.run(call, entry.request)
        if not strict or entry.application_version != self.application_version:
            return
        if not entry.answer.reason and again != entry.answer:
            raise Diverged(f"{again} in replay, and {entry.answer} when it ran first")

    def run(self, call: Call, request: bytes) -> CompletionRecord:
        """Run a call, at once."""
        return self.execute(decode(request))

    def execute(self, operation: Operation) -> CompletionRecord:
        """Carry an operation out; what is recorded of it."""
        self.changed = None
        if operation.behaviour == "poison":
            self.die()
            raise Killed(operation.call)
        record = self._execute(operation)
        if self.application_version < _TELLS_MORE:
            return record
        # One field more than the version before has.
        return record._replace(trailing_metadata=(("more", "x"),))

    def _execute(self, operation: Operation) -> CompletionRecord:
        if operation.behaviour == "abort":
            return ABORTED
        version, total = self.accounts.get(operation.account, (0, 0))
        if operation.behaviour == "read":
            return CompletionRecord(response=b"%d %d" % (version, total))
        version, total = version + 1, total + operation.amount
        self.accounts[operation.account] = version, total
        self.changed = operation, version
        return CompletionRecord(response=b"%d %d" % (version, total))


def _keys_of(request: bytes, read: Callable[[bytes], Any] | None) -> frozenset[int]:
    return keys_of_values([decode(request).account])
