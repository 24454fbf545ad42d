"""Producers: an append is in the log once, however often it is sent (DESIGN-LOG §12, L3).

Kept for each producer, by its id:

- ``producer/ID``: its window, and the token that its appends show;
- ``producer/ID/retired``: there once it was retired;
- ``producer/ID/seq``: its highest seq;
- ``producer/ID/answer/SLOT``: seq, fingerprint and last LSN of the newest append of that slot
  (the seq modulo the window), which is the completion record of RIFL §3;
- ``producer/ID/open`` and ``span/ID/TAG``: what it has pending (see ``spans``).

Nothing here depends on an LSN that is not known yet, so that a producer may have as many appends
unanswered as its window allows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from _rifl_ground.texts import hides
from sharedlog._core.calling import portable
from sharedlog._core.commit import LSN_BYTES, Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import (
    EntryKind,
    ProducerDecision,
    body_of,
    checksum_of,
    committed_bodies,
)
from sharedlog._core.errors import (
    AnswerGone,
    InvalidRequest,
    OutOfOrder,
    ProducerRetired,
    SeqReused,
    UnknownProducer,
)
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.steps import Get, Lsns, Rule

MAX_WINDOW = 512
TOKEN_BYTES = 16
_FINGERPRINT_BYTES = 16
GRANTED = "producers"
_NOTHING_DECIDED = {each: body_of(each, 0, 0) for each in EntryKind}
# From here on are the ids of queries' tasks (``query.tasks``), which have a count of their own and
# are removed with their batch, which alone decides what they have pending.
FIRST_TASK = 1 << 40
# Before a producer's id: the keys with it are the producers that have something pending.
OPEN = "open/"


_LAST, _COMMITTED = Stamp.LAST, EntryKind.COMMITTED


@hides("token")
class ProducerId(NamedTuple):
    """Who appends: an id of the log, never given twice, and the token that shows it."""

    id: int
    token: bytes
    window: int


class NewMessage(NamedTuple):
    """What is appended: an envelope's bytes, and the tags it is found by."""

    envelope: bytes
    tags: tuple[str, ...]


class Appended(NamedTuple):
    """``lsn``: of the append's last entry; ``first``: of its first one.

    ``first`` is None if the answer was kept from an earlier arrival. ``checksum``: of that
    last entry, as positions have it.
    """

    lsn: int
    first: int | None
    checksum: int


def identity_key(producer: int) -> str:
    """Return the key of what a producer shows."""
    return f"producer/{producer}"


def seq_key(producer: int) -> str:
    """Return the key of a producer's highest seq."""
    return f"producer/{producer}/seq"


def answer_key(producer: int, seq: int, window: int) -> str:
    """Return the key of what was answered for a seq, until the window has passed it."""
    return f"producer/{producer}/answer/{seq % window}"


def identity_of(window: int, token: bytes) -> bytes:
    """Return what a producer's own key holds."""
    return window.to_bytes(2, "big") + token


def retired_key(producer: int) -> str:
    """Return the key that is there once a producer was retired."""
    return f"producer/{producer}/retired"


def open_key(producer: int) -> str:
    """Return the key that counts the tags with something pending; it is there if one has."""
    return f"{OPEN}{producer}"


def number(value: int) -> bytes:
    """Return how numbers are kept."""
    return value.to_bytes(8, "big")


def fingerprint_of(
    kind: EntryKind, messages: Sequence[NewMessage], decisions: Sequence[ProducerDecision]
) -> bytes:
    """Return what tells one content of an append from another: 16 bytes of a BLAKE2b."""
    parts = [body_of(kind, 0, 0, decisions=decisions) if decisions else _NOTHING_DECIDED[kind]]
    for envelope, tags in messages:
        joined = _joined(tags)
        parts += (b"%d %d " % (len(envelope), len(joined)), envelope, joined)
    return hashlib.blake2b(b"".join(parts), digest_size=_FINGERPRINT_BYTES).digest()


# Most messages have the tags of others.
@lru_cache(maxsize=1024)
def _joined(tags: tuple[str, ...]) -> bytes:
    return "\n".join(tags).encode()


@portable
def grant(token: bytes, window: int = 1) -> Rule[ProducerId]:
    """Make a producer. Run again after a lost reply it makes another; the first is never used.

    ``token``: 16 random bytes. ``window``: how many of its appends may be unanswered, 1 to 512,
    counted from the oldest of them: an answer is kept until the seq that is a window later.
    """
    if len(token) != TOKEN_BYTES or not 1 <= window <= MAX_WINDOW:
        raise InvalidRequest(f"a token has 16 bytes, a window is 1 to {MAX_WINDOW}")
    while True:
        value = (yield Get((GRANTED,)))[GRANTED]
        producer, puts = granted(value, token, window)
        try:
            yield Commit((Condition(GRANTED, value),), puts)
        except Refused:
            continue
        return producer


def granted(value: bytes | None, token: bytes, window: int) -> tuple[ProducerId, tuple[Put, ...]]:
    """Return the producer behind those that were granted, and what makes it.

    ``value``: of ``GRANTED``, which the step that makes it has as a condition.
    """
    found = 1 + (0 if value is None else int.from_bytes(value, "big"))
    puts = (
        Put(GRANTED, number(found)),
        Put(identity_key(found), identity_of(window, token)),
        Put(seq_key(found), number(0)),
    )
    return ProducerId(found, token, window), puts


def shown(producers: Sequence[ProducerId]) -> Rule[None]:
    """Raise ``UnknownProducer`` unless each of these was granted, with this window and token.

    For programs that act on producers that a client names; what a grant gave never changes.
    """
    found = yield Get(tuple(identity_key(each.id) for each in producers))
    for each in producers:
        if found[identity_key(each.id)] != identity_of(each.window, each.token):
            raise _unknown(each.id)


@portable
def append(
    producer: ProducerId,
    seq: int,
    messages: Sequence[NewMessage],
    *,
    fence: Fence | None = None,
) -> Rule[Appended]:
    """Append messages as the producer's ``seq``, committed by this append: once.

    A seq that was appended is answered from what is kept with it, before the fence is judged.
    Raises ``OutOfOrder``, ``SeqReused``, ``AnswerGone``, ``ProducerRetired``,
    ``UnknownProducer`` and ``Fenced``; each says whether the append is in the log.
    """
    if not messages:
        raise InvalidRequest("an append has at least one message")
    envelopes, tags = zip(*messages, strict=True)
    bodies = committed_bodies(envelopes, producer.id, seq)
    # What ``NewEntry`` does by itself, much less of it.
    entries = tuple(map(tuple.__new__, repeat(NewEntry), zip(bodies, tags, strict=True)))
    fingerprint = fingerprint_of(_COMMITTED, messages, ())
    return (yield from once(producer, seq, fingerprint, Commit(entries=entries), fence))


def once(
    producer: ProducerId,
    seq: int,
    fingerprint: bytes,
    commit: Commit,
    fence: Fence | None,
) -> Rule[Appended]:
    """Have a commit happen as the producer's ``seq``, unless that seq is in the log.

    A refusal that nothing of the producer explains is the commit's own conditions': ``Refused``.
    """
    if seq < 1:
        raise InvalidRequest("seqs begin at 1")
    answer = answer_key(producer.id, seq, producer.window)
    mine, highest = _shown_by(producer)
    mine = (*mine, Condition(highest, number(seq - 1)))
    if fence is not None:
        mine = (*mine, condition_of(fence))
    conditions, puts, entries, _ = commit
    said = number(seq)
    whole = Commit(
        mine + conditions,
        (Put(highest, said), Put(answer, said + fingerprint, _LAST), *puts),
        entries,
    )
    checksum = checksum_of(entries[-1].body)
    while True:
        try:
            lsns: Lsns = yield whole
        except Refused as refused:
            found = yield Get((*(each.key for each in mine), answer))
            lsn = judge(producer, seq, fingerprint, found)
            if lsn is not None:
                return Appended(lsn, None, checksum)
            if fence is not None:
                check_fence(fence, found[fence_key(fence.name)])
            if any(refused.found[each.key] != each.value for each in mine):
                # It was refused by what has changed since: it may be written now.
                continue
            raise
        return Appended(lsns.last, lsns.first, checksum)


# All appends of a producer have them.
@lru_cache(maxsize=256)
def _shown_by(producer: ProducerId) -> tuple[tuple[Condition, ...], str]:
    """Return what holds as long as the producer may append, and the key of its highest seq."""
    shown = Condition(identity_key(producer.id), identity_of(producer.window, producer.token))
    return (shown, Condition(retired_key(producer.id), None)), seq_key(producer.id)


def judge(
    producer: ProducerId, seq: int, fingerprint: bytes, found: dict[str, bytes | None]
) -> int | None:
    """Return the LSN that a seq got, None if it may be appended; raises what refuses it."""
    if found[identity_key(producer.id)] != identity_of(producer.window, producer.token):
        raise _unknown(producer.id)
    highest = int.from_bytes(found[seq_key(producer.id)] or b"", "big")
    if seq <= highest:
        kept = found[answer_key(producer.id, seq, producer.window)] or b""
        if int.from_bytes(kept[:8], "big") != seq:
            raise AnswerGone(f"seq {seq} was appended; what it was answered is no longer kept")
        if kept[8:-LSN_BYTES] != fingerprint:
            raise SeqReused(f"seq {seq} was appended with other content")
        return int.from_bytes(kept[-LSN_BYTES:], "big")
    if found[retired_key(producer.id)] is not None:
        raise ProducerRetired(f"producer {producer.id} was retired; its highest seq is {highest}")
    if seq != highest + 1:
        raise OutOfOrder(f"seq {seq} does not follow {highest}", highest + 1)
    return None


def _unknown(producer: int) -> UnknownProducer:
    return UnknownProducer(f"producer {producer} is not of this log, or not with this token")
