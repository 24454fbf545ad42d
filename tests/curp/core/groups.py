"""Entries and calls for the tests of the core."""

from __future__ import annotations

from typing import Any

from curp._core.entries import ClientRegistered, Operation
from curp._core.state import GroupState
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

__all__ = ["METHOD", "AliveLeases", "call", "committed", "operation"]

METHOD = "/test.v1.Test/Add"


class AliveLeases:
    """A lease server that says that everyone is alive."""

    def renew(self, client_id: int, now: float) -> bool:
        return True

    def is_session(self, client_id: int) -> bool:
        return False

    def writes(self, client_id: int, token: bytes) -> bool:
        return True

    def holder(self, client_id: int) -> bytes:
        return b""


def call(client_id: int, seq: int | None, key: bytes | None = None, **more: Any) -> Call:
    """Return a call of the test method."""
    made = Call(client_id, b"", seq, key, method=METHOD, fingerprint=b"f", **more)
    made.stamp = (5, 6)
    return made


def operation(client_id: int, seq: int | None = None, **more: Any) -> Operation:
    """Return an operation with an answer of its own."""
    given: dict[str, Any] = {
        "key": None,
        "method": METHOD,
        "request": b"request",
        "answer": CompletionRecord(response=b"%d" % (seq or 0)),
        "fingerprint": b"f",
        "keys": frozenset({1}),
        **more,
    }
    return Operation(client_id, seq, **given)


def committed(*entries: Any, state: GroupState | None = None) -> GroupState:
    """Return a state with these entries; clients are registered as need be."""
    state = state or GroupState()
    for entry in entries:
        client_id = getattr(entry, "client_id", 0)
        if isinstance(entry, Operation) and client_id > 0 and client_id not in state.clients:
            state.commit(state.applied + 1, ClientRegistered(client_id), 0.0)
        state.commit(state.applied + 1, entry, 0.0)
    return state
