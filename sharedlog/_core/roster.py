"""The roster of a log: which producers it granted, and what each has pending."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sharedlog._core.calling import portable
from sharedlog._core.producers import (
    GRANTED,
    ProducerId,
    identity_key,
    retired_key,
    seq_key,
    shown,
)
from sharedlog._core.spans import OPEN_SPANS, begin_of, span_key
from sharedlog._core.steps import Get, Rule, Scan

_PIECE = 100


class Granted(NamedTuple):
    """A producer. ``seq``: its highest; ``window``: how many of its appends may be unanswered.

    ``pending``: where its open spans begin, by tag.
    """

    id: int
    window: int
    seq: int
    retired: bool
    pending: dict[str, int]


@portable
def granted_producers() -> Rule[list[Granted]]:
    """Return every producer that the log granted, by id; not as of one moment."""
    count = int.from_bytes((yield Get((GRANTED,)))[GRANTED] or b"", "big")
    spans = yield Scan(OPEN_SPANS)
    pending: dict[int, dict[str, int]] = {}
    for key, value in spans.items():
        producer, _, tag = key.removeprefix(OPEN_SPANS).partition("/")
        pending.setdefault(int(producer), {})[tag] = begin_of(value)
    roster: list[Granted] = []
    for first in range(1, count + 1, _PIECE):
        ids = range(first, min(first + _PIECE, count + 1))
        found = yield Get(tuple(key for each in ids for key in _keys(each)))
        for each in ids:
            identity, retired, seq = (found[key] for key in _keys(each))
            roster.append(
                Granted(
                    each,
                    int.from_bytes((identity or b"")[:2], "big"),
                    int.from_bytes(seq or b"", "big"),
                    retired is not None,
                    pending.get(each, {}),
                )
            )
    return roster


@portable
def one_producer(producer: ProducerId) -> Rule[Granted]:
    """Return what there is of a producer, for who has its token; raises ``UnknownProducer``."""
    yield from shown([producer])
    found = yield Get(tuple(_keys(producer.id)))
    identity, retired, seq = (found[key] for key in _keys(producer.id))
    prefix = span_key(producer.id, "")
    spans = yield Scan(prefix)
    return Granted(
        producer.id,
        int.from_bytes((identity or b"")[:2], "big"),
        int.from_bytes(seq or b"", "big"),
        retired is not None,
        {key.removeprefix(prefix): begin_of(value) for key, value in spans.items()},
    )


def _keys(producer: int) -> Iterator[str]:
    return iter((identity_key(producer), retired_key(producer), seq_key(producer)))
