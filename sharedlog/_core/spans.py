"""Spans: what is pending, the markers that decide it, and retiring (DESIGN-LOG §13, C1, C2).

A *span* is what one producer has pending under one tag. ``span/ID/TAG`` has the LSN where it
begins, written with the append that opened it; ``producer/ID/open`` counts them, so that a marker
which does not know of one is refused. Markers have a tag of their own: trimming looks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.calling import portable
from sharedlog._core.commit import LSN_BYTES, Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import EntryKind, ProducerDecision, body_of
from sharedlog._core.errors import InvalidRequest, SpanGone, UnknownProducer
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.producers import (
    FIRST_TASK,
    Appended,
    NewMessage,
    ProducerId,
    fingerprint_of,
    identity_key,
    number,
    once,
    open_key,
    retired_key,
    seq_key,
)
from sharedlog._core.steps import Get, Rule, Scan
from sharedlog._core.streams import commits_tag, stream_of

# Under it are the open spans of all producers.
OPEN_SPANS = "span/"
# The tag of everything that commits spans; no stream has such a name.
MARKERS = "*markers"


class Pended(NamedTuple):
    """``lsn``: of the append's last entry; ``begins``: of the spans that it opened, by tag."""

    lsn: int
    begins: dict[str, int]


def span_key(producer: int, tag: str) -> str:
    """Return the key of a span's begin."""
    return f"{OPEN_SPANS}{producer}/{tag}"


def begin_of(value: bytes) -> int:
    """Return where a span begins, of what its key holds."""
    return int.from_bytes(value[-LSN_BYTES:], "big")


@portable
def pend(
    producer: ProducerId,
    seq: int,
    messages: Sequence[NewMessage],
    opened: Sequence[str],
    *,
    fence: Fence | None = None,
) -> Rule[Pended]:
    """Append messages that readers do not see until a marker commits them: once, as ``append``.

    ``opened``: the tags under which the producer has something pending already, by appends that
    were answered or are on their way. A span that is not as ``opened`` says: ``SpanGone``.
    """
    try:
        return (yield from pend_under(producer, seq, messages, opened, fence=fence))
    except Refused as refused:
        raise SpanGone(
            f"producer {producer.id} has other tags pending than {sorted(opened)}"
        ) from refused


def pend_under(
    producer: ProducerId,
    seq: int,
    messages: Sequence[NewMessage],
    opened: Sequence[str],
    *,
    fence: Fence | None = None,
    conditions: Sequence[Condition] = (),
    name: str = "",
) -> Rule[Pended]:
    """Append as ``pend`` does, while these conditions hold, too; ``name``: for whom.

    Raises ``Refused`` if one of them does not, or the spans are not as ``opened`` says.
    """
    fresh = sorted({tag for each in messages for tag in each.tags} - set(opened))
    keys = [span_key(producer.id, tag) for tag in fresh]
    commit = pended(producer.id, seq, messages, opened, fresh, name)
    commit = commit._replace(conditions=(*commit.conditions, *conditions))
    fingerprint = fingerprint_of(EntryKind.PENDING, messages, ())
    appended = yield from once(producer, seq, fingerprint, commit, fence)
    if appended.first is not None:
        return Pended(appended.lsn, dict.fromkeys(fresh, appended.first))
    # It was there already, and may have been decided since: what is still to be published with
    # it must not be committed without it.
    found = yield Get((open_key(producer.id), *keys))
    if None in found.values():
        raise SpanGone(f"what producer {producer.id} had pending was decided meanwhile")
    begins = {tag: begin_of(found[key] or b"") for tag, key in zip(fresh, keys, strict=True)}
    return Pended(appended.lsn, begins)


def pended(
    producer: int,
    seq: int,
    messages: Sequence[NewMessage],
    opened: Sequence[str],
    fresh: Sequence[str],
    name: str = "",
) -> Commit:
    """Return the step that appends pending messages; ``fresh``: the tags of spans it begins."""
    if not messages:
        raise InvalidRequest("an append has at least one message")
    keys = [span_key(producer, tag) for tag in fresh]
    count = len(messages)
    return Commit(
        (
            Condition(open_key(producer), number(len(opened)) if opened else None),
            *(Condition(key, None) for key in keys),
        ),
        (
            Put(open_key(producer), number(len(opened) + len(fresh))),
            *(Put(key, b"", Stamp.FIRST) for key in keys),
        ),
        tuple(
            NewEntry(
                body_of(
                    EntryKind.PENDING,
                    producer,
                    seq,
                    index=index,
                    count=count,
                    message=message.envelope,
                    name=name,
                ),
                message.tags,
            )
            for index, message in enumerate(messages)
        ),
    )


@portable
def decide(
    producer: ProducerId,
    seq: int,
    decisions: Sequence[ProducerDecision],
    *,
    commits: bool,
    fence: Fence | None = None,
) -> Rule[Appended]:
    """Append the marker that commits what these producers have pending, or rolls it back: once.

    One entry with every tag, so that readers of all substreams see the same moment. Refused as
    ``SpanGone`` unless none of them is retired, the begins are theirs, all of theirs, and
    ``through`` is each one's highest seq; of ``producer`` itself that is ``seq - 1``.
    """
    for each in decisions:
        # ``once`` holds its producer to that seq, and to not being retired.
        if each.producer == producer.id and each.through != seq - 1:
            raise SpanGone(f"the marker is seq {seq}, and its producer's through not below it")
    kind = EntryKind.MARKER if commits else EntryKind.ROLLBACK
    commit = decided(kind, producer.id, seq, decisions)
    fingerprint = fingerprint_of(kind, (), ordered(decisions))
    try:
        return (yield from once(producer, seq, fingerprint, commit, fence))
    except Refused as refused:
        raise other_spans(commit, refused) from refused


def decided(
    kind: EntryKind,
    producer: int,
    seq: int,
    decisions: Sequence[ProducerDecision],
    *,
    name: str = "",
) -> Commit:
    """Return the step that decides by a marker, or a rollback, of this producer or name."""
    if not decisions or len({each.producer for each in decisions}) < len(decisions):
        raise InvalidRequest("a marker decides each of its producers once, and at least one")
    conditions: list[Condition] = []
    puts: list[Put] = []
    for each in ordered(decisions):
        if each.producer != producer:
            conditions.append(Condition(retired_key(each.producer), None))
            conditions.append(Condition(seq_key(each.producer), number(each.through)))
        conditions += _as_they_are(each.producer, each.begins)
        puts += _closed(each.producer, each.begins)
    entry = marker(kind, producer, seq, ordered(decisions), name)
    return Commit(tuple(conditions), tuple(puts), (entry,))


def ordered(decisions: Sequence[ProducerDecision]) -> tuple[ProducerDecision, ...]:
    """Return decisions in the order in which a marker has them."""
    return tuple(sorted(decisions, key=lambda each: each.producer))


def other_spans(commit: Commit, refused: Refused) -> SpanGone:
    """Return what says which spans were not as a marker had them."""
    found = refused.found
    wrong = sorted(each.key for each in commit.conditions if found[each.key] != each.value)
    return SpanGone(f"not what is pending: {', '.join(wrong)}")


@portable
def has_pending(producer: ProducerId) -> Rule[bool]:
    """Whether the producer has something pending."""
    key = open_key(producer.id)
    return (yield Get((key,)))[key] is not None


@portable
def retire(producer: int, *, seq: int | None = None, fence: Fence | None = None) -> Rule[int]:
    """End a producer for good, rolling back what it has pending; return its highest seq.

    One step: of it and a marker, the first decides. Done again it changes nothing.
    ``seq``: only if that is its highest still, and it is not retired; else ``Refused``. Raises
    ``UnknownProducer``, ``Fenced``, and ``InvalidRequest`` for the producer of a query's task.
    """
    prefix = span_key(producer, "")
    mine = (identity_key(producer), retired_key(producer), seq_key(producer), open_key(producer))
    if producer >= FIRST_TASK:
        raise InvalidRequest(f"producer {producer} is of a query's task: its batch decides for it")
    while True:
        found = yield Get(mine)
        if found[identity_key(producer)] is None:
            raise UnknownProducer(f"producer {producer} is not of this log")
        highest = int.from_bytes(found[seq_key(producer)] or b"", "big")
        if seq is not None and (seq != highest or found[retired_key(producer)] is not None):
            raise Refused(found)
        if found[retired_key(producer)] is not None:
            return highest
        spans: Mapping[str, bytes] = yield Scan(prefix)
        begins = {key.removeprefix(prefix): begin_of(value) for key, value in spans.items()}
        conditions = [
            Condition(retired_key(producer), None),
            Condition(seq_key(producer), number(highest)),
            *_as_they_are(producer, begins),
            *([] if fence is None else [condition_of(fence)]),
        ]
        puts = [Put(retired_key(producer), b"\x01"), *_closed(producer, begins)]
        decision = ProducerDecision(producer, highest, begins)
        entries = (marker(EntryKind.ROLLBACK, producer, highest, (decision,)),) if begins else ()
        try:
            yield Commit(tuple(conditions), tuple(puts), entries)
        except Refused as refused:
            if fence is not None:
                check_fence(fence, refused.found[fence_key(fence.name)])
            # It appended meanwhile, or was decided.
            continue
        return highest


def marker(
    kind: EntryKind, producer: int, seq: int, decisions: Sequence[ProducerDecision], name: str = ""
) -> NewEntry:
    """Return the entry that decides, with every tag of what it decides."""
    tags = {tag for each in decisions for tag in each.begins}
    if kind is EntryKind.MARKER:
        tags |= {commits_tag(stream_of(tag)) for tag in tags} | {MARKERS}
    return NewEntry(
        body_of(kind, producer, seq, decisions=decisions, name=name), tuple(sorted(tags))
    )


def _as_they_are(producer: int, begins: Mapping[str, int]) -> Iterator[Condition]:
    yield Condition(open_key(producer), number(len(begins)) if begins else None)
    for tag in sorted(begins):
        yield Condition(span_key(producer, tag), number(begins[tag]))


def _closed(producer: int, begins: Mapping[str, int]) -> Iterator[Put]:
    yield Put(open_key(producer), None)
    for tag in sorted(begins):
        yield Put(span_key(producer, tag), None)
