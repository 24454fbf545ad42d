"""Checkpoints, as both sinks find them; and a pipeline's full refresh (DESIGN §8, §16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
_SETTING = "spark.sql.streaming.checkpointLocation"


def _told(monkeypatch: pytest.MonkeyPatch, batch: int, **more: str) -> None:
    """Have tasks be told that they are of a micro-batch."""
    told = {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": str(batch),
        "spark.jobGroup.id": "run",
        **more,
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


def _place_for_service(**given: str) -> str:
    return str(_service(**given).place)


def _place_for_log(**given: str) -> str:
    return str(_log(**given).checkpoint)


_PLACES = pytest.mark.parametrize("place", [_place_for_service, _place_for_log])


@_PLACES
def test_a_checkpoint_is_found_by_the_sessions_setting_too(
    monkeypatch: pytest.MonkeyPatch, place: Callable[..., str]
) -> None:
    """As platforms name it: by that and the query's name a copy is told apart (DESIGN §8, §16)."""
    _told(monkeypatch, 3, **{_SETTING: "s3a://lake//all/./"})
    assert place(queryname="paying") == "s3a://lake/all/paying"
    assert place(queryname="paying") == place(checkpointlocation="s3a://lake/all/paying")
    assert place(queryname="paying", checkpointlocation="/mine") == "/mine"
    # Spark draws a place for each start of a query without a name: no checkpoint goes on.
    assert place() == ""


@_PLACES
def test_a_checkpoint_that_spark_does_not_tell_is_refused(
    monkeypatch: pytest.MonkeyPatch, place: Callable[..., str]
) -> None:
    """The error says what to set: a copy of it would write, too (DESIGN §8, §16)."""
    _told(monkeypatch, 3)
    said = r'no checkpoint.*option\("checkpointLocation", \.\.\.\); nothing was (sent|appended)'
    with pytest.raises((IdentityError, SinkError), match=said):
        place(queryname="paying")


@_PLACES
def test_a_checkpoint_is_one_however_its_path_is_spelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Callable[..., str]
) -> None:
    """Else a query would be taken for a copy of itself (DESIGN §8, §16)."""
    _told(monkeypatch, 3)
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")

    def found(location: str) -> str:
        return place(checkpointlocation=location)

    at = f"{tmp_path}/kept/q"
    for spelled in (
        *(at, f"{at}/", f"{tmp_path}//kept/./q", f"{tmp_path}/link/q", f"file:{at}"),
        *(f"file://{at}/", f"file:///.{at}", f"{tmp_path}/other/../kept/q"),
    ):
        assert found(spelled) == at
    assert found("s3a://b//c/./q/") == found("s3a://b/c/q") != found("s3a://a/c/q")
    assert found("dbfs:/c/q") == found("dbfs:///c/q") != found("/c/q")
