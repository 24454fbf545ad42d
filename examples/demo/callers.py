"""Two ways to make a payment over a bad path: as everyone does it, and with rifl."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.demo.payments import Payment

__all__ = ["Answer", "Caller", "grpc_retries", "rifl_retries"]

_ATTEMPT_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 30.0
_MOST_ATTEMPTS = 40

_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "bank.v1.Bank"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.02s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
# A server that was restarted is found again within half a second, not two minutes.
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the caller knows in the end: an entry on the statement, or nothing."""

    entry: int | None
    replayed: bool = False


class Caller(Protocol):
    """Makes one payment; called from many threads."""

    def __call__(self, payment: Payment) -> Answer:
        """Return what became of it; an answer without entry means unknown."""
        ...


@contextlib.contextmanager
def grpc_retries(target: str) -> Iterator[Caller]:
    """gRPC's own retry policy, and around it the loop anyone would write."""
    options = [("grpc.service_config", json.dumps(_SERVICE_CONFIG)), *_RECONNECT]
    with grpc.insecure_channel(target, options) as channel:
        stub = bank_pb2_grpc.BankStub(channel)

        def pay(payment: Payment) -> Answer:
            for attempt in range(_MOST_ATTEMPTS):
                try:
                    receipt, _ = _send(stub, payment, _ATTEMPT_TIMEOUT_S)
                except grpc.RpcError as error:
                    if error.code() not in (
                        grpc.StatusCode.UNAVAILABLE,
                        grpc.StatusCode.DEADLINE_EXCEEDED,
                    ):
                        raise
                    time.sleep(_pause(attempt))
                else:
                    return Answer(entry=receipt.entry)
            return Answer(entry=None)

        yield pay


@contextlib.contextmanager
def rifl_retries(target: str) -> Iterator[Caller]:
    """The same stub over rifl's channel, which retries by itself."""
    with rifl.connect(target, options=_RECONNECT) as channel:
        stub = bank_pb2_grpc.BankStub(channel)

        def pay(payment: Payment) -> Answer:
            for attempt in range(_MOST_ATTEMPTS):
                try:
                    receipt, call = _send(stub, payment, _CALL_TIMEOUT_S)
                except grpc.RpcError as error:
                    outcome = getattr(error, "outcome", None)
                    if outcome is rifl.Outcome.UNKNOWN:
                        return Answer(entry=None)
                    if outcome is not rifl.Outcome.NOT_EXECUTED:
                        raise
                    # Nothing ran: the only case in which a new call is safe.
                    time.sleep(_pause(attempt))
                else:
                    trailing = dict(call.trailing_metadata() or ())
                    return Answer(
                        entry=receipt.entry, replayed=trailing.get("rifl-outcome") == "replayed"
                    )
            return Answer(entry=None)

        yield pay


def _send(
    stub: bank_pb2_grpc.BankStub, payment: Payment, timeout: float
) -> tuple[bank_pb2.Receipt, grpc.Call]:
    method = stub.Deposit if payment.from_account is None else stub.Transfer
    receipt, call = method.with_call(payment.request(), timeout=timeout)
    return receipt, call


def _pause(attempt: int) -> float:
    """Exponential backoff with full jitter, at most half a second."""
    return random.uniform(0, min(0.5, 0.02 * 2**attempt))  # noqa: S311 - jitter
