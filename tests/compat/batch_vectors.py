"""Test vectors of batched calls, for ``make_vectors``."""

from __future__ import annotations

from typing import Any

from rifl._wire.envelope import ItemReply, encode_batch, encode_reply
from rifl._wire.header import fingerprint
from rifl.core import CompletionRecord, Outcome
from rifl.v1 import rifl_pb2

__all__ = ["METHOD", "REPLIES", "batch_vectors"]

METHOD = "/bank.v1.Bank/Deposit"
_TIME_US, _SEED = 1_700_000_000_000_000, 2**64 - 1
_BATCHES: list[tuple[str, list[tuple[bytes, bytes | int]]]] = [
    ("keyed", [(b"one", b"row-1"), (b"two", b"row-2"), (b"one", b"row-1")]),
    ("sequenced", [(b"one", 5), (b"", 7), (b"three", 8)]),
    ("mixed", [(b"one", 2**62), (b"two", b"k"), (b"three", 2**62 + 1)]),
]
REPLIES = [
    ("all executed", [ItemReply(CompletionRecord(response=b"ok"), Outcome.EXECUTED)] * 2),
    (
        "each its own",
        [
            ItemReply(CompletionRecord(response=b"new"), Outcome.EXECUTED),
            ItemReply(CompletionRecord(response=b"old"), Outcome.REPLAYED),
            ItemReply(
                CompletionRecord(5, "no such account", None, (), (("why", "closed"),)),
                Outcome.EXECUTED,
            ),
            ItemReply(
                CompletionRecord(
                    10, "still running", outcome=Outcome.UNKNOWN, reason="IN_PROGRESS"
                ),
                Outcome.UNKNOWN,
                0.05,
            ),
        ],
    ),
]


def batch_vectors() -> dict[str, Any]:
    """Return requests with their headers, and answers."""
    return {
        "method": METHOD,
        "metadata": {"rifl-batch": "1"},
        "batches": [_batch(*named) for named in _BATCHES],
        "answers": [
            {
                "name": name,
                "items": [_shown(reply) for reply in replies],
                "wire": encode_reply(replies).hex(),
            }
            for name, replies in REPLIES
        ],
    }


def _batch(name: str, items: list[tuple[bytes, bytes | int]]) -> dict[str, Any]:
    seqs = [identity for _, identity in items if isinstance(identity, int)]
    keys = [b"" if isinstance(identity, int) else identity for _, identity in items]
    header = rifl_pb2.CallHeader(
        client_id=7,
        token=b"\xa5" * 8,
        first_incomplete=min(seqs, default=1),
        attempt=1,
        time_us=_TIME_US,
        seed=_SEED,
    )
    body = encode_batch([request for request, _ in items], keys if any(keys) else [], seqs)
    return {
        "name": name,
        "header": header.SerializeToString(deterministic=True).hex(),
        "items": [
            {
                "request": request.hex(),
                **(
                    {"seq": str(identity)} if isinstance(identity, int) else {"key": identity.hex()}
                ),
                "fingerprint": fingerprint(METHOD, request).hex(),
            }
            for request, identity in items
        ],
        "wire": body.hex(),
    }


def _shown(reply: ItemReply) -> dict[str, Any]:
    record = reply.record
    return {
        "code": record.code,
        "details": record.details,
        "response": None if record.response is None else record.response.hex(),
        "trailing_metadata": [list(entry) for entry in record.trailing_metadata],
        "reason": record.reason,
        "outcome": reply.outcome.value,
        "retry_after_s": reply.retry_after_s,
    }
