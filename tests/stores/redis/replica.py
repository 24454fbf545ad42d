"""One replica over a shared store, at the ``Store`` interface."""

from __future__ import annotations

import threading
import time
from typing import Any

from lease_server import SharedAuthority, open_authority
from rifl._stores import RecordCodec, open_store
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

__all__ = ["ATOMIC", "FIRST", "IDEMPOTENT", "OTHER", "PLAIN", "Replica", "call", "keyed"]

PLAIN = MethodPolicy()
IDEMPOTENT = MethodPolicy(kind=Kind.IDEMPOTENT)
# Tests of claims; those of runs without one are in tests/stores/test_unclaimed.py.
ATOMIC = MethodPolicy(kind=Kind.ATOMIC, claim="always")
FIRST = CompletionRecord(response=b"first")
OTHER = CompletionRecord(response=b"other")


def call(client: int, seq: int, payload: bytes = b"p", first: int = 1, **more: Any) -> Call:
    """Return a sequenced call."""
    return Call(
        client, b"", seq, first_incomplete=first, fingerprint=payload, method="/s/M", **more
    )


def keyed(client: int, key: bytes, payload: bytes = b"p") -> Call:
    """Return a keyed call."""
    return Call(client, b"", None, key, fingerprint=payload, method="/s/M")


class Replica:
    """A store and its authority, as one server process has them."""

    def __init__(
        self,
        url: str,
        *,
        window: int = 8,
        term_s: float = 60.0,
        key_bounds: KeyBounds | None = None,
        codec: RecordCodec | None = None,
        policies: dict[str, MethodPolicy] | None = None,
    ) -> None:
        self.url = url
        self.store: Any = open_store(url, codec=codec)
        authority = open_authority(self.store.leases, term_s=term_s)
        assert isinstance(authority, SharedAuthority)
        self.authority = authority
        self.store.bind(
            authority,
            MethodPolicies(policies or {}, "plain"),
            clock=time.monotonic,
            bounds=Bounds(window=window),
            key_bounds=key_bounds,
        )

    def client(self) -> int:
        """Grant a client id."""
        return self.authority.grant().client_id

    def claim(self, call: Call, policy: MethodPolicy = PLAIN) -> Any:
        """Decide about a call."""
        decision = self.store.claim(call, policy)
        return decision.wait() if isinstance(decision, Later) else decision

    def begin(self, call: Call, policy: MethodPolicy = PLAIN) -> Any:
        """Claim a call that is new."""
        decision = self.claim(call, policy)
        assert decision.verdict is Verdict.NEW
        return decision.attempt

    def finish(self, attempt: Any, record: CompletionRecord = FIRST) -> CompletionRecord | None:
        """Record an answer; the one that stands instead, if one does."""
        return self.store.finish(attempt, record).wait()  # type: ignore[no-any-return]

    def woken(self, attempt: Any) -> threading.Event:
        """Wait for an attempt; the event is set when it ended."""
        event = threading.Event()
        if not self.store.wait(attempt, event.set):
            event.set()
        return event

    def fall_silent(self) -> None:
        """Stop beating, as a process that is suspended does; it may still write."""
        # As those see it that are on another machine.
        self.store._presence.close()
        self.store._heartbeat.stop()

    def close(self) -> None:
        """Close the store."""
        self.store.close()
