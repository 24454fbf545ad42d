"""A name that is used twice: the rows of a batch that is run again are compared (§16)."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from pyspark.sql.pandas.types import from_arrow_schema

import rifl.spark
import sharedlog
from sharedlog._core.query.state import Ticket
from sharedlog.spark._content import Content, message_hashes, row_hashes
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import SinkOptions
from sharedlog.spark._sink import Writing, check_again, check_messages, commit
from sharedlog.spark._tasks import JOB

_NOON = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
_BANK = {"module": "examples.bank.v1.bank_pb2", "message": "bank.v1.DepositRequest"}
_FORMATS = ({}, {"valueFormat": "arrow"}, {"valueFormat": "protobuf", **_BANK})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A log with a stream."""
    found = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(found) as log:
        log.stream("paid", 3, datetime.timedelta(0))
        yield found


def _write(url: str, tasks: Sequence[pyarrow.RecordBatch], **options: str) -> None:
    """Write a job's rows as its tasks do, each in batches of three rows."""
    given = SinkOptions.read({"log": url, "stream": "paid", "name": "daily", **options})
    writing = Writing(given, from_arrow_schema(tasks[0].schema), stream=False)
    ticket = Ticket("daily", JOB, "", writing.plan.number, 0)
    results = check_messages(
        [
            writing.write([rows.slice(at, 3) for at in range(0, rows.num_rows, 3)], ticket)
            for rows in tasks
        ]
    )
    place = place_of(url)
    check_again(place, given, commit(place, given, results), results)


def _rows(numbers: Sequence[int], form: dict[str, str], add: int = 0) -> pyarrow.RecordBatch:
    rows = [{"account": f"a{number}", "cents": number + add} for number in numbers]
    if not form:
        rows = [{"key": row["account"], "value": str(row["cents"])} for row in rows]
    return pyarrow.RecordBatch.from_pylist(rows)


@pytest.mark.parametrize("form", _FORMATS, ids=["raw", "arrow", "protobuf"])
def test_a_job_run_again_is_told_from_another_of_as_many_rows(
    url: str, form: dict[str, str]
) -> None:
    """The same rows, in whatever partitions, are done; others are an error that counts (§16)."""
    numbers = list(range(20))
    options = form if not form else {**form, "key": "account"}
    _write(url, [_rows(numbers[:7], form), _rows(numbers[7:], form)], **options)
    numbers.reverse()
    _write(url, [_rows(numbers[:12], form), _rows(numbers[12:], form)], **options)
    text = r"has committed 20 rows \(5 of those that came now .* these 20 are others"
    with pytest.raises(sharedlog.AlreadyCommitted, match=text) as caught:
        _write(url, [_rows(numbers[:15], form), _rows(numbers[15:], form, 100)], **options)
    # A scheduler that runs a finished job again asks so, also of what Spark made of the error.
    assert rifl.spark.already_done(caught.value)
    with pytest.raises(sharedlog.AlreadyCommitted, match=r"20 rows \(1 of .* these 21 are"):
        _write(url, [_rows([*numbers, 3], form)], **options)
    with sharedlog.open(url) as log:
        assert len([each for at in range(3) for each in log.read("paid", at)]) <= 20
        # Once the first rows are trimmed it is not known which differ.
        log.publish("paid", b"later")
        log.trim()
    with pytest.raises(sharedlog.AlreadyCommitted, match="20 rows, and these 20 are"):
        _write(url, [_rows(numbers, form, 1)], **options)


_WHOLE = {
    "value": b"v",
    "key": b"k",
    "headers": [("h", b"1")],
    "content_type": "text/csv",
    "schema_name": "S",
    "causation_id": "c",
    "event_time": _NOON,
}
_TYPES = pyarrow.schema(
    [
        *(("value", pyarrow.binary()), ("key", pyarrow.binary())),
        ("headers", pyarrow.map_(pyarrow.string(), pyarrow.binary())),
        *((name, pyarrow.string()) for name in ("content_type", "schema_name", "causation_id")),
        ("event_time", pyarrow.timestamp("us", "UTC")),
    ]
)


@pytest.mark.parametrize(
    "other",
    [
        *({"value": b"w"}, {"key": None}, {"key": b""}, {"headers": [("h", b"2")]}),
        *({"headers": None}, {"content_type": "text/plain"}, {"schema_name": "T"}),
        *({"causation_id": ""}, {"event_time": _NOON + datetime.timedelta(microseconds=1)}),
    ],
    ids=str,
)
def test_all_that_a_message_says_is_compared(url: str, other: dict[str, Any]) -> None:
    """Of two rows of one value, headers, types and event time tell them apart (§16)."""
    plain = pyarrow.RecordBatch.from_pylist([{"value": b"v"}] * 2, pyarrow.schema([_TYPES[0]]))
    first = pyarrow.RecordBatch.from_pylist([_WHOLE, {"value": b"v"}], _TYPES)
    _write(url, [first])
    _write(url, [first.slice(1), first.slice(0, 1)])
    with pytest.raises(sharedlog.AlreadyCommitted, match=r"2 rows \(1 of those"):
        _write(url, [pyarrow.RecordBatch.from_pylist([_WHOLE | other, {"value": b"v"}], _TYPES)])
    with pytest.raises(sharedlog.AlreadyCommitted, match=r"2 rows \(1 of those"):
        _write(url, [plain])


def test_a_part_that_is_null_is_one_that_is_not_there() -> None:
    """As the log keeps neither; an empty text is none, an empty key is one."""
    bare = {"value": b"v"}
    of_all = pyarrow.RecordBatch.from_pylist(
        [bare, {**bare, "headers": [], "content_type": "", "schema_name": ""}], _TYPES
    )
    one = message_hashes(pyarrow.RecordBatch.from_pylist([bare], pyarrow.schema([_TYPES[0]])))
    assert message_hashes(of_all).tolist() == [one[0]] * 2


def test_of_many_rows_a_part_is_told() -> None:
    """What differs is estimated then, and exact for as few as a task may tell."""
    content = Content(sampled=True)
    for first in range(0, 100_000, 10_000):
        content.add(row_hashes([pyarrow.array(range(first, first + 10_000))]))
    sample = content.sample()
    assert sample is not None
    assert 0 < len(sample.hashes) // 8 <= 16_384
    assert 80_000 < (len(sample.hashes) // 8) << sample.bits < 120_000


_KINDS: Any = some.recursive(
    some.sampled_from(
        [
            *(pyarrow.string(), pyarrow.binary(), pyarrow.bool_(), pyarrow.int8(), pyarrow.int64()),
            *(pyarrow.float32(), pyarrow.float64(), pyarrow.decimal128(38, 3), pyarrow.date32()),
            *(pyarrow.timestamp("us", "UTC"), pyarrow.duration("us"), pyarrow.null()),
        ]
    ),
    lambda inner: some.one_of(
        inner.map(pyarrow.list_),
        inner.map(lambda of: pyarrow.map_(pyarrow.string(), of)),
        some.lists(inner, min_size=1, max_size=3).map(
            lambda parts: pyarrow.struct([(f"f{at}", of) for at, of in enumerate(parts)])
        ),
    ),
    max_leaves=4,
)


def _value(of: pyarrow.DataType, draw: random.Random) -> Any:
    """A value of few, so that equal ones and nulls are common."""
    types = pyarrow.types
    if types.is_null(of) or draw.random() < 0.2:
        return None
    if types.is_struct(of):
        return {each.name: _value(each.type, draw) for each in of}
    if types.is_list(of):
        return [_value(of.value_type, draw) for _ in range(draw.randrange(3))]
    if types.is_map(of):
        keys = draw.sample(["", "k", "ke", "key"], draw.randrange(3))
        return [(key, _value(of.item_type, draw)) for key in sorted(keys)]
    number = draw.randrange(4)
    if types.is_string(of) or types.is_binary(of):
        text = ["", "a", "1234567\0", "x" * 600][number]
        return text if types.is_string(of) else text.encode()
    if types.is_boolean(of):
        return number > 1
    if types.is_decimal(of):
        return decimal.Decimal(number * (1 << 70)).scaleb(-3)
    return number


@settings(deadline=None, max_examples=100)
@given(_KINDS, some.integers(0, 2**32), some.integers(0, 3))
def test_rows_have_one_hash_if_they_are_equal(of: Any, seed: int, skipped: int) -> None:
    """Wherever they are in whatever batch; and as many hashes as values."""
    draw = random.Random(seed)
    array = pyarrow.array([_value(of, draw) for _ in range(12)], of)
    values = [repr(each) for each in array.to_pylist()]
    hashes = row_hashes([array]).tolist()
    assert len(set(hashes)) == len(set(values))
    assert len({*zip(hashes, values, strict=True)}) == len(set(values))
    assert row_hashes([array.slice(skipped)]).tolist() == hashes[skipped:]
    order = draw.sample(range(12), 12)
    assert row_hashes([array.take(pyarrow.array(order))]).tolist() == [hashes[at] for at in order]
