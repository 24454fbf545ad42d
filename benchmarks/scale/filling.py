"""A server that has seen much already: idle clients, unacknowledged records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rifl._server import Deduplicator
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

__all__ = ["Filler"]

_POLICIES = {kind: MethodPolicy.of(kind) or MethodPolicy() for kind in ("plain", "idempotent")}
_METHOD = "/bench.v1.Bench/Call"
_PAYLOAD = b"x" * 16
_RECORD = CompletionRecord(response=b"y" * 24)
_BURST = 10_000
# As many commits wait together.
_TOGETHER = 1_000


class Filler:
    """Carries calls out in a server's own steps, decision and record, without gRPC."""

    def __init__(self, dedup: Deduplicator) -> None:
        self._dedup = dedup
        self._store: Any = dedup._store

    def idle_clients(self, count: int) -> list[int]:
        """Grant ids; each makes one call and is idle: two rounds of the sweeper later."""
        ids: list[int] = []
        while len(ids) < count:
            for _ in range(min(_BURST, count - len(ids))):
                ids.append(self._dedup._authority.grant().client_id)
                self.call(ids[-1], 1)
            self.sweep()
            self.sweep()
        return ids

    def call(self, client_id: int, seq: int) -> None:
        """Carry one call out, which acknowledges all before it."""
        pending = self._finish(client_id, seq, seq)
        if pending is not None:
            pending.wait()

    def unacknowledged(self, clients: int, each: int) -> None:
        """Leave so many records of each client, durable and not acknowledged."""
        waiting: list[Any] = []
        for client_id, seq in self._identities(clients, each):
            waiting.append(self._finish(client_id, seq, 1))
            if len(waiting) == _TOGETHER:
                for pending in waiting:
                    pending.wait()
                waiting.clear()
        for pending in waiting:
            pending.wait()

    def sweep(self) -> None:
        """Do what the sweeper does."""
        self._store.clients_ended(self._dedup._authority.expire())
        self._store.expire_keys()

    def _identities(self, clients: int, each: int) -> Iterator[tuple[int, int]]:
        for _ in range(clients):
            client_id = self._dedup._authority.grant().client_id
            for seq in range(1, each + 1):
                yield client_id, seq

    def _finish(self, client_id: int, seq: int, first_incomplete: int) -> Any:
        call = Call(
            client_id, b"", seq, None, first_incomplete, fingerprint=_PAYLOAD, method=_METHOD
        )
        # An idempotent call has no intent to be written first.
        kind = "idempotent" if self._store.transactions else "plain"
        decision = self._store.claim(call, _POLICIES[kind])
        if decision.verdict is not Verdict.NEW:
            raise RuntimeError(f"{call.rpc_id} is {decision.verdict}")
        return self._store.finish(decision.attempt, _RECORD)
