"""``format("sharedlog")``: a stream of a log as a sink of queries, each row once (§16)."""

from __future__ import annotations

import collections
import gc
import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql import functions as f

import sharedlog
import sharedlog.spark
from examples.bank.v1.bank_pb2 import DepositRequest
from sharedlog._core.envelope import unpack
from sharedlog._core.query.state import PlanState
from sharedlog._core.streams import substream_of
from sharedlog.spark._column_rows import ArrowRows
from sharedlog.spark._messages import RawRows
from sharedlog.spark._options import SinkError, SinkOptions
from tests.sharedlog.places import url_of
from tests.spark.log_chain import Chain, failing
from tests.spark.starting import LIMITED, run_on_what_is_there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_query_writes_each_row_once_though_tasks_fail_and_a_batch_runs_again(
    chain: Chain, tmp_path: Path
) -> None:
    """One marker commits a batch, and who runs it again is told that it did (§16)."""
    marks = tmp_path / "marks"
    marks.mkdir()
    chain.publish(40)
    chain.run(failing(marks))
    assert len(list(marks.iterdir())) == 2
    assert chain.written() == chain.wanted()
    messages = [each for at in range(3) for each in chain.log.read("paid", at)]
    orders = {each.text: each.key for at in range(2) for each in chain.log.read("orders", at)}
    assert {each.text: each.key for each in messages} == orders
    assert len({each.position.lsn for each in messages}) == 1
    assert list(chain.log._engine.scan("query-task/")) == []
    # The driver died between the sink's commit and Spark's: tasks discard what they have.
    assert chain.forget_commit() == 0
    chain.publish(10)
    chain.run()
    assert chain.written() == chain.wanted()
    found = chain.query()
    assert found is not None
    assert (found.state, found.closed, found.rows) == (PlanState.CLOSED, 1, 10)
    # Each run deposes the one before.
    assert len(found.deposed) == (1 if LIMITED else 2)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        # It may have planned other rows: they would be lost, or there twice.
        ("of then", "of two copies the one that committed goes on"),
        pytest.param("older", "the checkpoint is an older copy", marks=pytest.mark.long),
        pytest.param("deleted", "another query", marks=pytest.mark.long),
    ],
)
def test_a_checkpoint_that_is_another_one_than_committed_is_refused(
    chain: Chain, tmp_path: Path, kind: str, said: str
) -> None:
    """A copy of then, an older one, and one that was deleted write nothing (§16)."""
    copy = tmp_path / "copy"
    chain.publish(10)
    chain.run()
    if kind != "deleted":
        shutil.copytree(chain.checkpoint, copy)
        chain.forget_commit(copy)
    if kind == "older":
        chain.publish(5)
        chain.run()
    with pytest.raises(PySparkException, match=said):
        chain.run(checkpoint=copy)
    assert chain.written() == chain.wanted()


def test_a_checkpoint_that_the_session_names_is_told_from_its_copy(
    chain: Chain, tmp_path: Path
) -> None:
    """As platforms name them: the writer sees the query's name alone (§16)."""
    setting, rows = "spark.sql.streaming.checkpointLocation", chain.source()
    chain.publish(10)

    def run(below: Path | str) -> None:
        chain.spark.conf.set(setting, str(below))
        try:
            writer = rows.writeStream.format("sharedlog").queryName("paying")
            writer.options(log=chain.url, stream="paid", name="pay").trigger(availableNow=True)
            run_on_what_is_there(writer.start, Path(below, "paying"))
        finally:
            chain.spark.conf.unset(setting)

    run(tmp_path / "all")
    shutil.copytree(tmp_path / "all", tmp_path / "copy")
    chain.forget_commit(tmp_path / "all" / "paying")
    run(f"{tmp_path}//all/./")
    chain.forget_commit(tmp_path / "copy" / "paying")
    with pytest.raises(PySparkException, match=r"CheckpointWentBack.*/copy/paying"):
        run(tmp_path / "copy")
    assert chain.written() == chain.wanted()


def test_a_job_adopts_nothing(chain: Chain) -> None:
    """Run again with it, it would write twice (§16)."""
    rows = [("a", "1")]
    _write(chain, rows, name="daily")
    for name in ({"name": "daily"}, {}):
        with pytest.raises(PySparkException, match="adopt is for a query's checkpoint"):
            _write(chain, rows, adopt="true", **name)
    assert chain.written() == {"1": 1}


def test_an_empty_micro_batch_writes_no_entry(chain: Chain) -> None:
    """It is closed all the same, so that the next one follows it (§16)."""
    chain.publish(5)
    chain.run(lambda frame: frame.where("value is null"))
    found = chain.query()
    assert found is not None
    assert (found.closed, found.lsn) == (0, 0)
    chain.publish(5)
    chain.run()
    assert chain.written() == collections.Counter(f"o{number}" for number in range(5, 10))


def test_workers_freeze_what_they_have_loaded(chain: Chain) -> None:
    """Spark collects garbage behind each task, which goes through all modules else; of processes
    that are not Spark's workers, as this one, nothing is frozen."""
    frozen = gc.get_freeze_count()
    chain.publish(40)
    chain.run()
    found = chain.spark.range(16, numPartitions=8).mapInPandas(_frozen, "objects bigint")
    # The workers of the query's tasks, and maybe others.
    assert max(row.objects for row in found.collect()) > 10_000
    assert gc.get_freeze_count() <= frozen


def _frozen(frames: Iterable[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(objects=gc.get_freeze_count())[["objects"]]


def _write(chain: Chain, rows: list[tuple[str, str]], **options: str) -> None:
    sharedlog.spark.register(chain.spark)
    frame = chain.spark.createDataFrame(rows, "account string, value string")
    given = {"log": chain.url, "stream": "paid", "key": "account", **options}
    frame.write.format("sharedlog").options(**given).mode("append").save()


def test_a_batch_job_by_a_name_is_committed_once(chain: Chain) -> None:
    """Run again, after any failure, it adds nothing; with other rows it is told so (§16)."""
    rows = [(f"a{number}", f"v{number}") for number in range(20)]
    for _ in range(2):
        _write(chain, rows, name="daily")
        assert chain.written() == collections.Counter(value for _, value in rows)
    with pytest.raises(PySparkException, match="AlreadyCommitted"):
        _write(chain, [*rows[1:], ("a", "other")], name="daily")
    # Without a name each is its own, and the log keeps nothing of it.
    _write(chain, rows)
    assert chain.written() == collections.Counter([value for _, value in rows] * 2)
    assert list(chain.log._engine.scan("query/")) == ["query/daily"]
    assert {each.key for at in range(3) for each in chain.log.read("paid", at)} == {
        account.encode() for account, _ in rows
    }


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("update", {"k0=3": 1}),
        # All counts once more, each time.
        pytest.param(
            "complete",
            {"k0=3": 1} | {f"k{number}=2": 1 for number in range(1, 7)},
            marks=pytest.mark.long,
        ),
    ],
)
def test_updates_of_an_aggregate_are_appended_once_within_foreach_batch(
    chain: Chain, tmp_path: Path, mode: str, more: dict[str, int]
) -> None:
    """``appending`` names what each micro-batch writes: run again it is committed once (§16)."""
    chain.publish(14)

    def run() -> None:
        counts = (
            chain.source()
            .groupBy("key")
            .count()
            .selectExpr("key", "concat(cast(key as string), '=', count) as value")
        )
        writer = (
            counts.writeStream.outputMode(mode)
            .foreachBatch(
                sharedlog.spark.appending(log=chain.url, stream="paid", name="counts", key="key")
            )
            .option("checkpointLocation", str(tmp_path / "counted"))
            .trigger(availableNow=True)
        )
        run_on_what_is_there(writer.start, tmp_path / "counted")

    run()
    wanted = collections.Counter(f"k{number}=2" for number in range(7))
    assert chain.written() == wanted
    chain.forget_commit(tmp_path / "counted")
    chain.publish(1)
    run()
    assert chain.written() == wanted + collections.Counter(more)


def test_what_cannot_be_written_is_said_when_it_is_planned(chain: Chain) -> None:
    """An error of the driver, before a row is appended (§16)."""
    with pytest.raises(PySparkException, match="there is no stream 'nothing'"):
        _write(chain, [("a", "b")], stream="nothing")


_VALUE = pyarrow.field("value", pyarrow.string())


@pytest.mark.parametrize(
    ("fields", "key", "said"),
    [
        ([_VALUE, pyarrow.field("cents", pyarrow.int64())], None, "'cents' is no part of"),
        ([pyarrow.field("value", pyarrow.int64())], None, "'value' is binary or string"),
        ([pyarrow.field("key", pyarrow.string())], None, "no column value"),
        ([_VALUE], "account", "there is no column 'account'"),
        ([_VALUE, pyarrow.field("event_time", pyarrow.timestamp("us"))], None, "is timestamp"),
        ([_VALUE, _VALUE], None, "two columns have one name"),
        ([_VALUE, pyarrow.field("key", pyarrow.string())], "value", "'key' is no part of"),
    ],
)
def test_columns_are_parts_of_a_message(
    fields: list[pyarrow.Field], key: str | None, said: str
) -> None:
    """What a column cannot be is said before a row is written."""
    with pytest.raises(SinkError, match=said):
        RawRows(pyarrow.schema(fields), key)


def test_a_row_has_all_that_a_message_says() -> None:
    """Headers, times, and what it is; without a key substreams take turns."""
    rows = pyarrow.RecordBatch.from_pylist(
        [
            {"value": "a", "headers": [("n", b"1")], "event_time": 5, "schema_name": "s"},
            {"value": "b", "headers": None, "event_time": None, "schema_name": None},
        ],
        pyarrow.schema(
            [
                _VALUE,
                pyarrow.field("headers", pyarrow.map_(pyarrow.string(), pyarrow.binary())),
                pyarrow.field("event_time", pyarrow.timestamp("us", "UTC")),
                pyarrow.field("schema_name", pyarrow.string()),
            ]
        ),
    )
    raw = RawRows(rows.schema, None)
    told = list(raw.messages(rows, ["s/0", "s/1"], itertools.count(1), 7))
    assert [each.message.tag for each in told] == ["s/1", "s/0"]
    first, second = (unpack(each.message.envelope) for each in told)
    assert (first.body, first.event_time_us, first.schema_name) == (b"a", 5, "s")
    assert {each.name: each.value for each in first.headers} == {"n": b"1"}
    assert (second.body, second.event_time_us, len(second.headers)) == (b"b", 7, 0)
    with pytest.raises(SinkError, match="null"):
        list(
            RawRows(pyarrow.schema([_VALUE]), None).messages(
                pyarrow.RecordBatch.from_pylist([{"value": None}], pyarrow.schema([_VALUE])),
                ["s/0"],
                itertools.count(),
                7,
            )
        )


@pytest.mark.parametrize("engine", ["postgres", "redis", "etcd"])
def test_a_write_over_each_engine(
    spark: Any, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """Two tasks, one marker, and a job that is run again (§16)."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    sharedlog.spark.register(spark)
    frame = spark.range(0, 20, 1, 2).selectExpr("cast(id as string) as value")
    with sharedlog.create(url) as log:
        log.stream("paid", 2)
        for _ in range(2):
            given = {"log": url, "stream": "paid", "name": "daily"}
            frame.write.format("sharedlog").options(**given).mode("append").save()
        messages = [each for at in range(2) for each in log.read("paid", at)]
        assert sorted(int(each.text) for each in messages) == list(range(20))
        assert len({each.position.lsn for each in messages}) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"log": ""}, "name the log once"),
        ({"stream": "a b"}, "cannot name a stream"),
        ({"name": "a/b"}, "cannot name a query"),
        ({"adopt": "perhaps"}, "adopt is true or false"),
        ({"batchId": "7"}, "goes with a name"),
        ({"batchId": "x", "name": "a"}, "that foreachBatch gives"),
        ({"startingPosition": "end"}, "unknown option"),
        ({"path": "here"}, "take no path"),
    ],
)
def test_the_sinks_options_are_checked(given: dict[str, str], said: str) -> None:
    """What cannot be is refused before anything is written."""
    with pytest.raises(SinkError, match=said):
        SinkOptions.read({"log": "sqlite:///x", "stream": "paid"} | given)


def _columns(chain: Chain, first: int, last: int) -> Any:
    sharedlog.spark.register(chain.spark)
    return chain.spark.range(first, last, 1, 2).selectExpr(
        "concat('a', id % 5) as account", "id as cents", "timestamp_seconds(id) as at"
    )


def _read(chain: Chain, **options: str) -> Any:
    given = {"log": chain.url, "stream": "paid", **options}
    return chain.spark.read.format("sharedlog").options(**given).load()


def test_columns_travel_as_arrow_and_another_schema_is_refused(chain: Chain) -> None:
    """A message has a batch of rows of one substream; who writes first declares them (§16)."""
    given = {"log": chain.url, "stream": "paid", "key": "account", "valueFormat": "arrow"}
    rows = _columns(chain, 0, 300)
    rows.write.format("sharedlog").options(**given).mode("append").save()
    found = _read(chain, valueFormat="arrow")
    assert found.columns == ["account", "cents", "at"]
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, rows.collect()))
    messages = [each for at in range(3) for each in chain.log.read("paid", at)]
    assert len(messages) <= 6
    other = rows.selectExpr("account", "cents").write.format("sharedlog").options(**given)
    with pytest.raises(PySparkException, match="with other columns"):
        other.mode("append").save()
    with pytest.raises(PySparkException, match="are arrow"):
        _read(chain, valueFormat="protobuf")


def test_rows_of_another_day_under_a_jobs_name_are_refused(chain: Chain) -> None:
    """As many rows as it has committed, and others: they are not taken for the same (§16)."""
    given = {"log": chain.url, "stream": "paid", "name": "daily", "valueFormat": "arrow"}

    def write(first: int, parts: int) -> None:
        rows = _columns(chain, first, first + 5).repartition(parts)
        rows.write.format("sharedlog").options(**given).mode("append").save()

    write(0, 2)
    write(0, 1)
    with pytest.raises(PySparkException, match=r"AlreadyCommitted.*5 rows \(4 of those"):
        write(4, 2)
    assert sorted(each.cents for each in _read(chain, valueFormat="arrow").collect()) == [*range(5)]


def test_a_program_declares_columns_that_queries_read_and_write(chain: Chain) -> None:
    """Without Spark; names and types count, and other ones are refused to both (§16)."""
    account = pyarrow.field("account", pyarrow.string(), nullable=False)
    given = pyarrow.schema([account, ("cents", pyarrow.int64())])
    plain = sharedlog.spark.declare_columns(chain.log, "paid", given)
    assert plain == sharedlog.spark.declare_columns(chain.log, "paid", plain)
    with pytest.raises(sharedlog.SchemaChanged, match="b of type string is not declared"):
        sharedlog.spark.declare_columns(chain.log, "paid", plain.append(account.with_name("b")))
    with pytest.raises(sharedlog.NoSuchStream):
        sharedlog.spark.declare_columns(chain.log, "none", plain)
    value = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(value, plain) as writer:
        writer.write_batch(pyarrow.RecordBatch.from_pylist([{"account": "b", "cents": 7}], plain))
    about = sharedlog.About(content_type="application/vnd.apache.arrow.stream")
    chain.log.publish("paid", value.getvalue().to_pybytes(), about=about)
    rows = _columns(chain, 0, 3).select("account", "cents")
    to = {"log": chain.url, "stream": "paid", "valueFormat": "arrow"}
    rows.write.format("sharedlog").options(**to).mode("append").save()
    found = sorted(map(tuple, _read(chain, valueFormat="arrow").collect()))
    assert found == [("a0", 0), ("a1", 1), ("a2", 2), ("b", 7)]


def test_columns_travel_as_protobuf_and_as_any_programs_messages(chain: Chain) -> None:
    """What a query writes a program reads by its type, and the other way round (§16)."""
    bank = {"valueFormat": "protobuf", "module": "examples.bank.v1.bank_pb2"}
    bank["message"] = "bank.v1.DepositRequest"
    given = {"log": chain.url, "stream": "paid", "key": "account", **bank}
    sharedlog.spark.register(chain.spark)
    rows = chain.spark.range(20).selectExpr("concat('a', id) as account", "id as cents")
    rows.write.format("sharedlog").options(**given).mode("append").save()
    messages = [each for at in range(3) for each in chain.log.read("paid", at)]
    assert {each.schema_name for each in messages} == {bank["message"]}
    deposits = {each.key.decode(): each.parse(DepositRequest).cents for each in messages}
    assert deposits == {f"a{number}": number for number in range(20)}
    chain.log.publish("paid", DepositRequest(account="b", cents=7))
    # Declared by who wrote first.
    found = _read(chain, valueFormat="protobuf").select("account", "cents").collect()
    assert sorted(map(tuple, found)) == sorted([*deposits.items(), ("b", 7)])


def test_arrow_batches_are_cut_to_what_a_message_has() -> None:
    """And a key's rows are all in its substream (§12)."""
    schema = pyarrow.schema([("k", pyarrow.int64()), ("v", pyarrow.string())])
    batch = pyarrow.RecordBatch.from_arrays(
        [pyarrow.array([at % 7 for at in range(100)]), pyarrow.array(["x" * 50_000] * 100)],
        schema=schema,
    )
    rows, tags = ArrowRows(schema, "k"), ["s/0", "s/1"]
    told = list(rows.messages(batch, tags, itertools.count(), 0))
    assert sum(each.rows for each in told) == 100
    assert max(each.message.size for each in told) < (1 << 20) + 1000
    for each in told:
        value = unpack(each.message.envelope).body
        for key in pyarrow.ipc.open_stream(value).read_all().column("k").to_pylist():
            assert tags[substream_of(str(key).encode(), 2)] == each.message.tag
    huge = pyarrow.RecordBatch.from_pylist([{"k": 1, "v": "x" * (2 << 20)}], schema)
    with pytest.raises(SinkError, match="a row of"):
        list(rows.messages(huge, tags, itertools.count(), 0))
    with pytest.raises(SinkError, match="whole number"):
        ArrowRows(pyarrow.schema([("k", pyarrow.float64())]), "k")


def test_filters_say_what_is_read_at_all(chain: Chain, restored: Any) -> None:
    """By substream, key and LSN, where PySpark hands them on; the rows are the same (§16)."""
    sharedlog.spark.register(chain.spark)
    chain.publish(30)
    pushed = hasattr(datasource, "EqualTo")
    if pushed:
        restored("spark.sql.python.filterPushdown.enabled", "true")
    given = {"log": chain.url, "stream": "orders", "partitionRows": "5"}
    given["pushFilters"] = str(pushed).lower()
    frame = chain.spark.read.format("sharedlog").options(**given).load()
    whole = frame.rdd.getNumPartitions()
    messages = [each for at in range(2) for each in chain.log.read("orders", at)]
    one = messages[7].position
    times = sorted(each.append_time for each in messages)
    for condition, wanted in (
        ("substream = 1", lambda each: each.substream == 1),
        ("key = cast('k3' as binary)", lambda each: each.key == b"k3"),
        ("lsn > 20", lambda each: each.position.lsn > 20),
        (f"position = '{one}'", lambda each: each.position == one),
        (
            (f.col("append_time") >= times[20]) & (f.col("append_time") < times[25]),
            lambda each: times[20] <= each.append_time < times[25],
        ),
    ):
        found = frame.where(condition)
        texts = sorted(each.text for each in messages if wanted(each))
        assert sorted(bytes(row.value).decode() for row in found.collect()) == texts
        if pushed:
            assert found.rdd.getNumPartitions() < whole
