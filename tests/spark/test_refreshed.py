"""A pipeline's full refresh: neither sink begins anew unless it is asked to (DESIGN §8, §16)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rifl.spark import IdentityError
from rifl.spark import _tasks as of_services
from rifl.spark._options import WriteOptions
from sharedlog.spark import SinkError
from sharedlog.spark import _tasks as of_logs
from sharedlog.spark._options import SinkOptions
from sharedlog.spark._tasks import LogWritePlan, stream_ticket

_FLOW = "s3a://lake/pipeline/_checkpoints/spark_catalog/default/bank/book"
_SERVICE = {"target": "bank:50051", "method": "/bank.v1.Bank/Deposit", "key": "reference"}
_LOG = {"log": "sqlite:///log.db", "stream": "paid"}


def _told(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Have tasks be told that they are of a micro-batch."""
    told = {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": str(batch),
        "spark.jobGroup.id": "run",
    }
    context = SimpleNamespace(getLocalProperty=told.get)
    for module in (of_services, of_logs):
        monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: context))


def _service(**more: str) -> Any:
    return of_services.this_micro_batch(WriteOptions.read({**_SERVICE, **more}))


def _log(**more: str) -> Any:
    return stream_ticket(LogWritePlan(SinkOptions.read({**_LOG, **more}), "log", 1))


@pytest.mark.parametrize("number", ["1", "17"])
def test_a_flow_that_was_refreshed_begins_nothing(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """Not before it is adopted, or what tells its rows is given; then it goes on (DESIGN §8)."""
    place = f"{_FLOW}/{number}"
    _told(monkeypatch, 0)
    with pytest.raises(IdentityError, match=r'book/\d+ is a pipeline.*"adopt".*Nothing was sent'):
        _service(checkpointlocation=place)
    with pytest.raises(SinkError, match=r'book/\d+ is a pipeline.*"adopt".*Nothing was appended'):
        _log(checkpointlocation=place)
    for more in ({"adopt": "true"}, {"session": "daily"}):
        assert _service(checkpointlocation=place, **more).place == place
    for more in ({"adopt": "true"}, {"name": "pay"}):
        assert _log(checkpointlocation=place, **more).checkpoint == place
    _told(monkeypatch, 1)
    assert _service(checkpointlocation=place).batch == 1
    assert _log(checkpointlocation=place).batch == 1


@pytest.mark.parametrize(
    "place",
    [f"{_FLOW}/0", f"{_FLOW}/1/more", "/checkpoints/book/1", "/my_checkpoints/book/1", _FLOW],
)
def test_other_checkpoints_begin(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A pipeline's first, and those of queries outside pipelines (DESIGN §8)."""
    _told(monkeypatch, 0)
    assert _service(checkpointlocation=place).place == place
    assert _log(checkpointlocation=place).checkpoint == place
