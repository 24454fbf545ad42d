"""Both clients under seeded faults, against the server's own tracker (DESIGN §3, §4)."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from rifl.core import Outcome, ResultTracker, Verdict, WindowExceeded
from rifl.core._calling.retry import RetryPolicy
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer, label, refuse

pytestmark = pytest.mark.faults

CALLS = 800
WINDOW = 64
POLICY = RetryPolicy(initial_backoff_s=0.005)


class Deduplicating:
    """Loses requests and answers, and forgets clients, by a seeded die."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.trackers: dict[int, ResultTracker] = {}
        self.records: dict[tuple[int, int], bytes] = {}
        self.effects: dict[bytes, int] = {}
        self.expired: set[int] = set()
        self.faults: list[str] = []
        # Requests whose arrival was stale.
        self.stale: set[bytes] = set()

    def __call__(self, arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        with self.lock:
            lose_request, lose_answer, expire = (
                self.random.random() < chance for chance in (0.05, 0.05, 0.003)
            )
        if lose_request:
            context.abort(grpc.StatusCode.UNAVAILABLE, "request lost")
        self.run(arrival, context, expire)
        if lose_answer:
            context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        if arrival.attempt > 1:
            label(context, "replayed")
        return arrival.request

    def run(self, arrival: Arrival, context: grpc.ServicerContext, expire: bool) -> None:
        call = arrival.call
        assert call is not None
        identity = (call.client_id, arrival.seq)
        with self.lock:
            if call.client_id in self.expired and identity not in self.records:
                refuse(context, "LEASE_EXPIRED")
            tracker = self.trackers.setdefault(call.client_id, ResultTracker(WINDOW))
            try:
                verdict = tracker.begin(arrival.seq, call.first_incomplete, call.completed)
            except WindowExceeded:
                self.faults.append(f"{identity}: window exceeded")
                refuse(context, "WINDOW_EXCEEDED")
            if verdict is Verdict.STALE:
                self.stale.add(arrival.request)
                refuse(context, "STALE_RPC")
            if verdict is Verdict.NEW:
                self.effects[arrival.request] = self.effects.get(arrival.request, 0) + 1
                self.records[identity] = arrival.request
                tracker.finish(arrival.seq, arrival.request)
            elif self.records[identity] != arrival.request:
                self.faults.append(f"{identity}: two calls in one identity")
            if expire:
                self.expired.add(call.client_id)

    def check(self, results: list[Any]) -> None:
        answered = [result for result in results if isinstance(result, bytes)]
        failed = [result for result in results if not isinstance(result, bytes)]
        assert self.faults == []
        # A hedge that lost may arrive after its call was answered and acknowledged.
        assert self.stale <= set(answered), "acknowledged while wanted"
        assert set(self.effects.values()) == {1}
        assert set(answered) <= set(self.effects)
        assert {(error.reason, error.outcome) for error in failed} <= {
            ("LEASE_EXPIRED", Outcome.UNKNOWN)
        }
        assert len(answered) > CALLS / 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["call", "future", "hedged"])
def test_sync_calls_have_their_effect_once(mode: str) -> None:
    """Every answered call ran once, none was acknowledged early, windows held (RIFL §3)."""
    die = Deduplicating(seed=1)
    hedge_after = 0.005 if mode == "hedged" else None
    with (
        ProtocolServer(die, window=WINDOW) as server,
        rifl.connect(server.target, retry=POLICY, hedge_after=hedge_after) as channel,
    ):
        method = channel.unary_unary(ECHO)

        def one(number: int) -> Any:
            try:
                if mode == "future":
                    return method.future(b"%d" % number, timeout=60).result()
                return method(b"%d" % number, timeout=60)
            except grpc.RpcError as error:
                return error

        with ThreadPoolExecutor(24) as pool:
            die.check(list(pool.map(one, range(CALLS))))


@pytest.mark.slow
@pytest.mark.parametrize("hedge_after", [None, 0.02])
async def test_aio_calls_have_their_effect_once(hedge_after: float | None) -> None:
    """As for the sync client, with all calls started at once (RIFL §3)."""
    die = Deduplicating(seed=2)
    with ProtocolServer(die, window=WINDOW) as server:
        async with rifl.aio.connect(
            server.target, retry=POLICY, hedge_after=hedge_after
        ) as channel:
            method = channel.unary_unary(ECHO)
            calls = [method(b"%d" % number, timeout=60) for number in range(CALLS)]
            die.check(await asyncio.gather(*calls, return_exceptions=True))
