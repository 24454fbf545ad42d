"""Model of the world: the servers of one shard over one store, whose tables are the product's."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from chaos.sim.loop import Loop, Process
from chaos.sim.network import Network, Rpc
from lease_server._table import LeaseTable
from lease_server._tokens import TOKEN_BYTES
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import FinalStatus
from rifl._leases.service import status_of
from rifl._wire.header import find_header, parse_call
from rifl._wire.labels import OUTCOME_KEY
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import ranges_from_pairs
from rifl.core._shared.errors import Draining, LeaseExpired, RiflError, StaleRpc, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

__all__ = ["TERM_S", "Server", "Shard"]

TERM_S = 60.0
# How long a server waits for its store before it refuses a call (``timeout_s``).
_PATIENCE_S = 5.0
_TOKEN = bytes(TOKEN_BYTES)
_POLICY = MethodPolicy()
_RECORD = CompletionRecord(response=b"done")
_PLAIN = FinalStatus(grpc.StatusCode.OK)


def _labelled(outcome: Outcome) -> FinalStatus:
    return FinalStatus(grpc.StatusCode.OK, "", (), ((OUTCOME_KEY, outcome.value),))


def _refused(error: RiflError) -> FinalStatus:
    status = status_of(error)
    return FinalStatus(status.code, status.details, (), status.trailing_metadata)


_EXECUTED, _REPLAYED = _labelled(Outcome.EXECUTED), _labelled(Outcome.REPLAYED)


class _Leases:
    """The lease table, as the table of clients asks it."""

    def __init__(self, table: LeaseTable) -> None:
        self.renew = table.renew

    def is_session(self, client_id: int) -> bool:
        """There are no sessions."""
        del client_id
        return False

    def writes(self, client_id: int, token: bytes) -> bool:
        """No session has a writer here."""
        return True

    def holder(self, client_id: int) -> bytes:
        """Leases count for no caller."""
        del client_id
        return b""


class Shard:
    """The store, and the servers over it."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        dice: Random,
        *,
        servers: int,
        places: int = 8,
        handler_s: float = 0.05,
    ) -> None:
        """``places``: calls that a server runs at once; ``handler_s``: their mean time."""
        self.loop = loop
        self.network = network
        self.dice = dice
        self.places = places
        self.handler_s = handler_s
        self.leases = LeaseTable(TERM_S)
        self.calls = ClientTable(_Leases(self.leases))
        # Requests of the store get no answer until then.
        self.silent_until = 0.0
        # Runs that ended with a record, and those that had one before.
        self.runs = self.doubled = 0
        self._recorded: set[tuple[int, int]] = set()
        # Renewals since ``watch_from``, and when the first of each client was.
        self.watch_from = float("inf")
        self.renewed = 0
        self.renewed_at: dict[int, float] = {}
        self.servers: Sequence[Server] = [Server(self, at) for at in range(servers)]
        for each in self.servers:
            each.start()

    def recorded(self, attempt: Attempt) -> None:
        """Keep what a run ended with."""
        call = attempt.call
        identity = (call.client_id, call.seq or 0)
        self.runs += 1
        self.doubled += identity in self._recorded
        self._recorded.add(identity)
        self.settle(attempt, _RECORD)

    def settle(self, attempt: Attempt, record: CompletionRecord | None) -> None:
        """End a run; who waits for it goes on."""
        self.calls.settle(attempt, record, keep=True)
        for wake in attempt.waiters:
            wake()

    def grant(self) -> pb.GrantReply:
        """Grant a lease."""
        return pb.GrantReply(
            client_id=self.leases.grant(self.loop.now),
            token=_TOKEN,
            term_ms=int(TERM_S * 1000),
            deduplicated=("*",),
            store=1,
        )

    def answer_lease(self, rpc: Rpc) -> None:
        """Grant, or renew."""
        now = self.loop.now
        if rpc.method.endswith("/Grant"):
            self.network.reply(rpc, _PLAIN, self.grant().SerializeToString())
            return
        request = pb.RenewRequest.FromString(rpc.request)
        client_id, first = request.client_id, request.first_incomplete
        if not self.leases.renew(client_id, now):
            self.network.reply(rpc, _refused(LeaseExpired("the lease is over")), None)
            return
        if now >= self.watch_from:
            self.renewed += 1
            self.renewed_at.setdefault(client_id, now)
        if first:
            self.calls.acknowledge(client_id, first, ranges_from_pairs(first, request.completed))
        renewed = pb.RenewReply(client_id=client_id, term_ms=int(TERM_S * 1000))
        self.network.reply(rpc, _PLAIN, renewed.SerializeToString())


class Server:
    """One server, through its lives. Calls wait for a place in the order in which they came."""

    def __init__(self, shard: Shard, index: int) -> None:
        self.rpcs: dict[Rpc, None] = {}
        self.process = Process(shard.loop, f"server{index}")
        self._shard = shard
        self._index = index
        self._draining = False
        self._queue: deque[Rpc] = deque()
        self._free = 0
        self._running: dict[Attempt, None] = {}

    def start(self) -> None:
        """Begin a life."""
        shard = self._shard
        self.process = Process(shard.loop, self.process.name)
        self._draining, self._free = False, shard.places
        shard.network.hosts[self._index] = self

    def die(self) -> None:
        """End at once; its store finds that out."""
        shard = self._shard
        self.process.kill()
        shard.network.hosts.pop(self._index, None)
        running, self._running = self._running, {}
        self._queue.clear()
        shard.network.host_died(self)
        self.rpcs.clear()
        for attempt in running:
            shard.settle(attempt, None)

    def drain(self) -> None:
        """Begin no call any more."""
        self._draining = True

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        shard = self._shard
        if self._draining:
            shard.network.reply(rpc, _refused(Draining("it stops")), None)
        elif rpc.kind == "lease":
            self._when_answered(rpc, lambda: shard.answer_lease(rpc), lambda: None)
        else:
            self._queue.append(rpc)
            self._take()

    def _take(self) -> None:
        while self._free and self._queue:
            rpc = self._queue.popleft()
            if rpc.ended:
                # It expired, or its client left: it is not begun.
                self.rpcs.pop(rpc, None)
                continue
            self._free -= 1
            self._when_answered(rpc, partial(self._decide, rpc), self._leave)

    def _when_answered(self, rpc: Rpc, then: Any, refused: Any) -> None:
        """Go on when the store answers; refuse what waits for it for too long."""
        shard = self._shard
        silent_s = shard.silent_until - shard.loop.now
        if silent_s <= 0:
            then()
        elif silent_s < _PATIENCE_S:
            self.process.after(silent_s, then)
        else:
            self.process.after(_PATIENCE_S, self._refuse, rpc, refused)

    def _refuse(self, rpc: Rpc, refused: Any) -> None:
        self._shard.network.reply(rpc, _refused(StoreUnavailable("it does not answer")), None)
        refused()

    def _leave(self) -> None:
        self._free += 1
        self._take()

    def _decide(self, rpc: Rpc) -> None:
        shard = self._shard
        call = parse_call(find_header(rpc.metadata) or b"", rpc.method, rpc.request)
        try:
            decision: Any = shard.calls.decide(call, _POLICY, shard.loop.now)
        except RiflError as error:
            shard.network.reply(rpc, _refused(error), None)
            self._leave()
            return
        attempt = decision.attempt
        if decision.verdict is Verdict.NEW and attempt is not None:
            self._running[attempt] = None
            self.process.after(2 * shard.handler_s * shard.dice.random(), self._end, rpc, attempt)
            return
        if decision.verdict is Verdict.IN_PROGRESS and attempt is not None:
            # It waits beside the places.
            attempt.waiters = [*attempt.waiters, partial(self._again, self.process, rpc)]
        elif decision.verdict is Verdict.COMPLETED:
            shard.network.reply(rpc, _REPLAYED, _RECORD.response)
        else:
            shard.network.reply(rpc, _refused(StaleRpc("acknowledged")), None)
        self._leave()

    def _end(self, rpc: Rpc, attempt: Attempt) -> None:
        shard = self._shard
        silent_s = shard.silent_until - shard.loop.now
        if silent_s > 0:
            # Its record is written once the store answers.
            self.process.after(silent_s, self._end, rpc, attempt)
            return
        self._running.pop(attempt, None)
        shard.recorded(attempt)
        shard.network.reply(rpc, _EXECUTED, _RECORD.response)
        self._leave()

    def _again(self, life: Process, rpc: Rpc) -> None:
        if life.alive:
            self._queue.append(rpc)
            life.after(0.0, self._take)
