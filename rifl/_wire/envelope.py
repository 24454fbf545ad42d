"""The envelope of a batched call: many calls of one method in one RPC (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from _rifl_ground.parsing import TooManyFields, parse
from _rifl_ground.refusals import Outcome
from rifl._wire.header import MAX_HEADER_BYTES, MAX_RESPONSE_BYTES, fingerprint
from rifl._wire.records import (
    outcome_from_wire,
    outcome_to_wire,
    record_from_message,
    record_to_message,
)
from rifl.core._shared.call import Call, check_acknowledgements, ranges_from_pairs
from rifl.core._shared.errors import BadHeader, BatchTooLarge
from rifl.core._shared.identity import MAX_KEY_BYTES, MAX_SEQ, check_key
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2

BATCH_KEY, BATCH_VALUE = "rifl-batch", "1"
# A tag of wire type 7, which there is not: a server that is not wrapped fails to parse it.
# (protobuf.js and newer C++ runtimes take 0x00, a tag of field 0, for an unknown field.)
MARK = b"\x07"
# In front of an answer, which only a rifl client parses.
REPLY_MARK = b"\x00"
# Of an item: request, key and seq; and what may be said of them all.
_ITEM_FIELDS, _FIELDS = 3, 16
# Tags and lengths of an item's three fields, at most.
_ITEM_OVERHEAD_BYTES = 24
_REPLY_OVERHEAD_BYTES = 4096


NO_INFO: Mapping[str, str] = MappingProxyType({})


class Unreadable(Exception):
    """What came back is no answer to a batch of so many items."""


class BatchedCall(Call):
    """One item of a batch; its seed is made of the batch's when it is asked for."""

    request: bytes = b""
    batch_stamp: tuple[int, int] = (0, 0)

    @property
    def stamp(self) -> tuple[int, int]:  # type: ignore[override]
        """The client's time in microseconds, and a seed that is the item's own."""
        time_us, seed = self.batch_stamp
        identity = self.key or self.seq.to_bytes(8, "big")  # type: ignore[union-attr]
        digest = blake2b(identity, digest_size=8, key=seed.to_bytes(8, "little")).digest()
        return time_us, int.from_bytes(digest, "little")


class ItemReply(NamedTuple):
    """What a batch's answer says of one item.

    ``code`` is a ``google.rpc.Code`` number; ``reason``, ``info`` and
    ``retry_after_s`` are those of a refusal.
    """

    record: CompletionRecord
    outcome: Outcome
    retry_after_s: float | None = None
    info: Mapping[str, str] = NO_INFO


class BatchReply(NamedTuple):
    """What a batch's answer says: each item's response and outcome, and what else of some.

    ``others`` are those of which there is more to say, by their position.
    """

    responses: list[bytes]
    outcomes: list[Outcome]
    others: dict[int, ItemReply]

    def items(self) -> list[ItemReply]:
        """Return every item's reply, whole."""
        return [
            self.others.get(at) or ItemReply(CompletionRecord(response=response), outcome)
            for at, (response, outcome) in enumerate(zip(*self[:2], strict=True))
        ]


def is_batch(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call's metadata has the marker."""
    return any(key == BATCH_KEY for key, _ in metadata or ())


def item_bytes(request: bytes, key: bytes | None) -> int:
    """How many bytes of an envelope an item takes, at most."""
    return len(request) + len(key or b"") + _ITEM_OVERHEAD_BYTES


def encode_batch(requests: Sequence[bytes], keys: Sequence[bytes], seqs: Sequence[int]) -> bytes:
    """Return a batch's request; ``keys`` is empty, or has one an item, empty for sequenced."""
    return MARK + rifl_pb2.Batch(requests=requests, keys=keys, seqs=seqs).SerializeToString()


def parse_batch(
    header: bytes, method: str, body: bytes, *, max_items: int, max_bytes: int
) -> list[BatchedCall]:
    """Parse a batch.

    Raises ``BadHeader`` for anything that is not a valid batch, whatever the bytes,
    and ``BatchTooLarge``; nothing else is raised for input from a peer. Only the first
    sequenced call carries the acknowledged ranges: applied once, they hold for all.
    """
    if len(body) > max_bytes:
        raise BatchTooLarge(f"a batch has at most {max_bytes} bytes, not {len(body)}")
    first = _parse_header(header)
    if body[:1] != MARK:
        raise BadHeader("the request of a batch begins with 0x07")
    try:
        batch = parse(rifl_pb2.Batch, body[1:], _ITEM_FIELDS * max_items + _FIELDS)
    except TooManyFields:
        raise BatchTooLarge(f"a batch has at most {max_items} items") from None
    except DecodeError:
        raise BadHeader("the request is not a rifl.v1.Batch") from None
    count = len(batch.requests)
    if not count:
        raise BadHeader("a batch has at least one item")
    if max(count, len(batch.keys), len(batch.seqs)) > max_items:
        raise BatchTooLarge(f"a batch has at most {max_items} items")
    keys = list(batch.keys) or [b""] * count
    if len(keys) != count or len(batch.seqs) != keys.count(b""):
        raise BadHeader("a batch has one key or seq for each item")
    if max(map(len, keys)) > MAX_KEY_BYTES:
        check_key(max(keys, key=len))
    return _calls(first, method, batch.requests, keys, iter(batch.seqs))


def encode_reply(replies: Sequence[ItemReply]) -> bytes:
    """Return the answer to a batch, of its items' in their order."""
    message = rifl_pb2.BatchReply(responses=[reply[0].response or b"" for reply in replies])
    if any(reply[1] is not Outcome.EXECUTED for reply in replies):
        message.outcomes.extend(outcome_to_wire(reply[1]) for reply in replies)
    for at, (record, _, retry_after_s, info) in enumerate(replies):
        if is_bare(record):
            continue
        status = message.statuses.add(item=at, info=info)
        status.record.CopyFrom(record_to_message(record._replace(response=None)))
        status.record.has_response = record.response is not None
        if retry_after_s is not None:
            status.retry_after_ms = round(retry_after_s * 1000)
    return REPLY_MARK + message.SerializeToString()


def encode_executed(responses: Sequence[bytes]) -> bytes:
    """Return the answer to a batch whose items were all executed, with no more to say."""
    return REPLY_MARK + rifl_pb2.BatchReply(responses=responses).SerializeToString()


def parse_reply(body: bytes, count: int) -> BatchReply:
    """Read the answer to a batch of ``count`` items; raises ``Unreadable``."""
    if body[:1] != REPLY_MARK:
        raise Unreadable("the answer is not a batch's")
    try:
        message = rifl_pb2.BatchReply.FromString(body[1:])
        responses = list(message.responses)
        outcomes = [outcome_from_wire(number) for number in message.outcomes]
        if not outcomes:
            outcomes = [Outcome.EXECUTED] * count
        if len(responses) != count or len(outcomes) != count:
            raise Unreadable(f"the answer has {len(responses)} items, not {count}")
        others: dict[int, ItemReply] = {}
        for status in message.statuses:
            record = record_from_message(status.record)
            if record.response is not None:
                record = record._replace(response=responses[status.item])
            after_s = status.retry_after_ms / 1000 if status.HasField("retry_after_ms") else None
            others[status.item] = ItemReply(
                record, outcomes[status.item], after_s, dict(status.info)
            )
    except (DecodeError, IndexError, UnicodeDecodeError):
        raise Unreadable("the answer is not a rifl.v1.BatchReply") from None
    return BatchReply(responses, outcomes, others)


def is_bare(record: CompletionRecord) -> bool:
    """Whether there is no more to say of a record than its response."""
    return record.response is not None and not (
        record.code
        or record.details
        or record.initial_metadata
        or record.trailing_metadata
        or record.reason
    )


def _parse_header(value: bytes) -> Any:
    if len(value) > MAX_HEADER_BYTES:
        raise BadHeader(f"a header has at most {MAX_HEADER_BYTES} bytes, not {len(value)}")
    try:
        header = rifl_pb2.CallHeader.FromString(value)
    except DecodeError:
        raise BadHeader("the header is not a rifl.v1.CallHeader") from None
    if not header.client_id:
        raise BadHeader("the header has no client id")
    if header.WhichOneof("identity") is not None:
        raise BadHeader("the header of a batch has no identity: its items have")
    if header.content_hash or header.received:
        raise BadHeader("a batch has no content hash, and its answer is no stream")
    return header


def _calls(
    header: Any, method: str, requests: Sequence[bytes], keys: Sequence[bytes], seqs: Any
) -> list[BatchedCall]:
    client_id, token, attempt = header.client_id, header.token, header.attempt or 1
    first_incomplete = header.first_incomplete or 1
    completed = ranges_from_pairs(first_incomplete, header.completed)
    told: Sequence[tuple[int, int]] = completed
    # An answer that fits a message of its own may not fit one with an envelope around it.
    limit = max(1, (header.max_response_bytes or MAX_RESPONSE_BYTES) - _REPLY_OVERHEAD_BYTES)
    stamp = (header.time_us, header.seed)
    calls: list[BatchedCall] = []
    for request, key in zip(requests, keys, strict=True):
        hashed = fingerprint(method, request)
        if key:
            call = BatchedCall(client_id, token, None, key, 1, (), attempt, hashed, method)
        else:
            seq = next(seqs)
            if completed or not 1 <= first_incomplete <= seq <= MAX_SEQ:
                check_acknowledgements(seq, first_incomplete, completed)
            call = BatchedCall(
                client_id, token, seq, None, first_incomplete, told, attempt, hashed, method
            )
            told = ()
        call.request = request
        call.max_response_bytes = limit
        call.batch_stamp = stamp
        call.store = header.store
        if not key:
            call.seed = header.seed
        calls.append(call)
    if not all(keys) or (first_incomplete == 1 and not completed):
        return calls
    raise BadHeader("keyed calls carry no acknowledgements")
