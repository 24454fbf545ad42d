"""Messages as rows: Arrow batches with one column for each part of a message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow

from sharedlog._core.message import Message

_TIME = pyarrow.timestamp("us", "UTC")
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("headers", pyarrow.map_(pyarrow.string(), pyarrow.binary())),
        ("content_type", pyarrow.string()),
        ("schema_name", pyarrow.string()),
        ("causation_id", pyarrow.string()),
        ("substream", pyarrow.int32()),
        ("lsn", pyarrow.int64()),
        ("ordinal", pyarrow.int64()),
        ("position", pyarrow.string()),
        ("append_time", _TIME),
        ("event_time", _TIME),
    ]
)


def batch_of(messages: Sequence[Message]) -> pyarrow.RecordBatch:
    """Return these messages as one batch; raises ``SealedMessage`` for one that is sealed."""
    columns = (
        [each.key for each in messages],
        [each.value for each in messages],
        [list(each.headers.items()) for each in messages],
        [each.content_type for each in messages],
        [each.schema_name for each in messages],
        [each.causation_id for each in messages],
        [each.substream for each in messages],
        [each.position.lsn for each in messages],
        [each.position.ordinal for each in messages],
        [str(each.position) for each in messages],
        [each.append_time for each in messages],
        [each.event_time for each in messages],
    )
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=SCHEMA)
