"""The listeners of streaming queries: records, metrics, and what a query did (§16, DESIGN §8)."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import rifl.spark
import sharedlog
import sharedlog.spark
from rifl.spark._report import Counts, report
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S
from tests.spark.log_chain import Chain

_ID, _RUN = "9d3a3f1c-0000-4000-8000-000000000001", "9d3a3f1c-0000-4000-8000-000000000002"


def _progress(batch: int, **more: Any) -> Any:
    told = {"id": _ID, "runId": _RUN, "name": "pay", "batchId": batch, "sources": [], **more}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))


def _told(lines: Path, *, query: str, batch: int, **counts: int) -> None:
    which = {"session": f"spark/{query}#{batch + 1}", "query": query, "batch": batch}
    report(Counts(**counts), method="/a.B/C", lines=str(lines), metrics=None, **which)


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_record_has_what_the_service_said_of_its_micro_batch(tmp_path: Path) -> None:
    """Each line of the report once, of this query alone, from the listener's begin on (§8)."""
    lines, records, registry = tmp_path / "report", tmp_path / "records", CollectorRegistry()
    _told(lines, query=_ID, batch=0, rows=9, executed=9)
    listener = rifl.spark.QueryListener(report=lines, records=records, registry=registry)
    _told(lines, query=_ID, batch=1, rows=5, executed=3, replayed=1, failed=1)
    _told(lines, query="another", batch=1, rows=7)
    with lines.open("a") as file:
        file.write('{"query": "' + _ID)
    listener.onQueryProgress(_progress(1, numInputRows=5, batchDuration=1500))
    with lines.open("a") as file:
        file.write('", "batch": 2, "method": "/a.B/D", "executed": 0, "replayed": 0, ')
        file.write('"failed": 2, "dead_lettered": 2}\n')
    listener.onQueryProgress(_progress(2, numInputRows=2))
    told = [[each["method"] for each in record["calls"]] for record in _records(records)]
    assert told == [["/a.B/C"], ["/a.B/D"]]
    assert [each["batchId"] for each in _records(records)] == [1, 2]

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"rifl_spark_query_{name}", {"query": "pay", **labels})

    assert value("batches_total") == 2
    assert value("input_rows_total") == 7
    assert value("batch_seconds_total") == 1.5
    assert value("calls_total", method="/a.B/C", outcome="executed") == 3
    assert value("calls_total", method="/a.B/D", outcome="dead_lettered") == 2
    # A report that was replaced is read from its beginning.
    lines.unlink()
    _told(lines, query=_ID, batch=3, rows=1, executed=1)
    listener.onQueryProgress(_progress(3))
    assert [each["executed"] for each in _records(records)[-1]["calls"]] == [1]


def test_the_end_of_a_run_is_told_and_what_goes_wrong_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raised would be Spark's trouble, where it is not looked for (§8)."""
    registry = CollectorRegistry()
    listener = rifl.spark.QueryListener(records=tmp_path / "records", registry=registry)
    listener.onQueryStarted(SimpleNamespace(id=_ID, runId=_RUN, name="pay"))
    listener.onQueryTerminated(SimpleNamespace(id=_ID, runId=_RUN, exception="no"))
    labels = {"query": "pay", "outcome": "failed"}
    assert registry.get_sample_value("rifl_spark_query_ended_total", labels) == 1
    assert _records(tmp_path / "records") == [{"id": _ID, "runId": _RUN, "exception": "no"}]
    caplog.set_level(logging.WARNING, "rifl.spark")
    away = sharedlog.spark.LogQueryListener(log=f"sqlite:///{tmp_path}/none.db", records=tmp_path)
    away.onQueryProgress(_progress(0))
    assert "query_listener_failed" in caplog.text


def test_how_much_a_query_has_not_read_is_looked_at_again_while_nothing_comes(
    tmp_path: Path,
) -> None:
    """Spark reports no progress then, and others go on appending (§16)."""
    registry, url = CollectorRegistry(), f"sqlite:///{tmp_path}/log.db"
    with sharedlog.create(url) as log:
        log.stream("orders", 1)
        listener = sharedlog.spark.LogQueryListener(log=url, registry=registry)
        listener.onQueryStarted(SimpleNamespace(id=_ID, runId=_RUN, name="pay"))
        read = {"lsn": 0, "incarnation": log.incarnation, "stream": "orders"}
        listener.onQueryProgress(_progress(0, sources=[{"endOffset": read}]))

        def lag() -> float:
            labels = {"query": "pay", "stream": "orders"}
            return registry.get_sample_value("rifl_spark_query_lag_entries", labels) or 0.0

        before = lag()
        for number in range(3):
            log.publish("orders", f"o{number}")
        assert lag() == before
        listener.onQueryIdle(SimpleNamespace(id=_ID, runId=_RUN))
        assert lag() == before + 3


@contextmanager
def _no_room(path: Path, more: int) -> Iterator[None]:
    """Have a file take so many bytes more, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("of_a_log", [False, True])
def test_a_full_disk_costs_whole_records_and_nothing_else(
    of_a_log: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query goes on, metrics count, it is logged, and what fits again is readable (§8, §16)."""
    records, lines, registry = tmp_path / "records", tmp_path / "report", CollectorRegistry()
    given: dict[str, Any] = {"records": records, "report": lines, "registry": registry}
    url = f"sqlite:///{tmp_path}/log.db"
    if of_a_log:
        sharedlog.create(url).close()
        listener = sharedlog.spark.LogQueryListener(log=url, **given)
    else:
        listener = rifl.spark.QueryListener(**given)
    caplog.set_level(logging.WARNING, "rifl.spark")
    _told(lines, query=_ID, batch=0, rows=1)
    listener.onQueryProgress(_progress(0))
    assert caplog.text == ""
    with _no_room(records, 40):
        listener.onQueryProgress(_progress(1))
    assert "query_listener_failed" in caplog.text
    with _no_room(lines, 40):
        _told(lines, query=_ID, batch=1, rows=1)
    assert "could not write its report" in caplog.text
    _told(lines, query=_ID, batch=2, rows=1)
    listener.onQueryProgress(_progress(2))
    assert [each["batchId"] for each in _records(records)] == [0, 2]
    assert [len(each["calls"]) for each in _records(records)] == [1, 1]
    assert registry.get_sample_value("rifl_spark_query_batches_total", {"query": "pay"}) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_over_a_log_is_seen_in_records_and_metrics(
    spark: Any, chain: Chain, log: sharedlog.Log, tmp_path: Path
) -> None:
    """What it has read, by stream, how much it has not, and what the log has of it (§16)."""
    records, registry = tmp_path / "records", CollectorRegistry()
    listener = sharedlog.spark.LogQueryListener(log=chain.url, records=records, registry=registry)
    chain.publish(20)
    spark.streams.addListener(listener)
    try:
        query = chain.run(reads={"name": "read"}, change=lambda rows: rows.select("key", "value"))
        until(
            lambda: any("exception" in each for each in _records(records)),
            "the end of the run",
            SLOW_S,
        )
    finally:
        spark.streams.removeListener(listener)
    *_, batch, end = _records(records)
    assert (batch["id"], end["exception"]) == (str(query.id), None)
    (source,) = batch["sources"]
    assert source["endOffset"] == {
        "lsn": 20,
        "incarnation": log.incarnation,
        "stream": "orders",
    }
    assert batch["numInputRows"] == 20
    (row,) = batch["log"]
    assert (row["name"], row["stream"], row["rows"], row["all_rows"]) == ("pay", "paid", 20, 20)
    # What the query itself has appended, by now.
    assert batch["lag"] == {"orders": row["lsn"] - 20}
    labels = {"query": str(query.id), "name": "pay", "stream": "paid"}
    assert registry.get_sample_value("rifl_spark_query_committed_rows", labels) == 20
