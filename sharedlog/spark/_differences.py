"""The difference between a batch run again and the rows that its log has, while it has them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy

from sharedlog._core.catalog import find_stream
from sharedlog._core.errors import LogError
from sharedlog._core.query.attempt import Sample
from sharedlog._core.query.state import Query
from sharedlog._core.ranges import Range, RangeReader
from sharedlog._core.stream_schema import find_schema
from sharedlog._core.streams import tag_of
from sharedlog._log.place import Place
from sharedlog.spark._columns import ArrowColumns, batch_of
from sharedlog.spark._content import hashes_of, message_hashes, row_hashes
from sharedlog.spark._options import SinkOptions

_MESSAGES = 500
# The error waits for it.
_LONGEST_S = 60.0


def differences(place: Place, options: SinkOptions, query: Query, samples: Sequence[Sample]) -> str:
    """Return how many rows differ, in words; empty if it is not known.

    ``samples``: of all tasks of the batch that is run again. It reads what was committed, for a
    minute at most.
    """
    if not samples:
        return ""
    bits = max(each.bits for each in samples)
    told = hashes_of(samples, bits)
    missing = len(told)
    try:
        if query.lsn:
            committed = _committed(place, options, query.lsn, time.monotonic() + _LONGEST_S)
            missing = _missing(told, committed)
    except (LogError, TimeoutError):
        return ""
    about = "about " if bits else ""
    return f" ({about}{missing << bits} of those that came now are not among them)"


def _missing(told: Any, committed: Iterable[Sequence[Any]]) -> int:
    """Return how many hashes have no row: each row, by either of its hashes, stands for one."""
    left: dict[int, int] = {}
    for each, count in zip(*numpy.unique(told, return_counts=True), strict=True):
        left[int(each)] = int(count)
    for ways in committed:
        for hashes in zip(*(each.tolist() for each in ways), strict=True):
            for each in hashes:
                if left.get(each, 0):
                    left[each] -= 1
                    break
    return sum(left.values())


def _committed(
    place: Place, options: SinkOptions, lsn: int, until_s: float
) -> Iterator[Sequence[Any]]:
    """Yield the hashes of a stream's rows that the marker at ``lsn`` committed, a batch at once."""
    columns = None
    if options.values.format == "arrow":
        schema = place.run(find_schema(options.stream))
        columns = None if schema is None else ArrowColumns(schema)
    stream = place.run(find_stream(options.stream))
    for substream in range(stream.substreams):
        reader = RangeReader(
            Range(tag_of(options.stream, substream), lsn - 1, lsn), place.incarnation
        )
        while found := place.run(reader.read(_MESSAGES)):
            if time.monotonic() > until_s:
                raise TimeoutError
            if columns is not None:
                for batch in columns.batches(found, place.seals):
                    yield [row_hashes(batch.columns)]
            else:
                batch = batch_of(found, place.seals)
                # Of a row without an event time the message has the time of its append.
                yield [message_hashes(batch), message_hashes(batch, times=False)]
