"""Tasks by what they are told of their query, Spark's local properties (DESIGN §8)."""

from __future__ import annotations

import re

import pytest

from rifl.spark._spark_task import SparkTask

_TAG = "SparkConnect_OperationTag_User_ann_Session_{}_Operation_11a"
_QUERY = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
_PINNED = {"spark.sql.streaming.internal.stateStore.partitions": "2"}
_ROOT = {"spark.sql.connect.streaming.foreachBatch.useClonedSession": "false"}


def _tagged(session: str) -> dict[str, str]:
    return {"spark.job.tags": f"other,{_TAG.format(session)}"}


@pytest.mark.parametrize(
    ("properties", "version", "session", "streaming", "refused"),
    [
        ({}, "4.3.0", "", False, (False, False)),
        (_PINNED, "4.3.0", "", False, (False, False)),
        (_tagged("s"), "4.3.0", "s", False, (False, False)),
        (_tagged("s") | _PINNED, "4.3.0", "s", True, (True, True)),
        (_tagged("s") | _ROOT, "4.3.1", "s", None, (True, False)),
        (_tagged("s"), "4.2.1", "s", None, (True, False)),
        (_tagged("s"), "5.0.0.dev0", "s", False, (False, False)),
    ],
)
def test_what_may_be_within_foreach_batch_is_refused_without_its_number(
    properties: dict[str, str],
    version: str,
    session: str,
    streaming: bool | None,
    refused: tuple[bool, bool],
) -> None:
    """Without a name where Spark shows a query's session or cannot show it; with one where it
    shows it (DESIGN §8)."""
    told = SparkTask.read(properties.get, version)
    assert (told.session, told.streaming) == (session, streaming)
    assert (bool(told.why_unknown()), bool(told.why_unknown(named=True))) == refused


def test_the_number_that_the_user_gives_is_the_one_that_spark_tells() -> None:
    """Where Spark tells none it is the user's; another one is refused (DESIGN §8)."""
    told = SparkTask.read(_QUERY.get)
    assert not told.numbered(None)
    assert not told.numbered(7)
    with pytest.raises(ValueError, match=re.escape("batchId is 8, and this runs in micro-batch 7")):
        told.numbered(8)
    assert SparkTask().numbered(8)
    assert not SparkTask().numbered(None)


def test_a_run_is_a_querys_own() -> None:
    """By its job group, unless a function set another, or its session of Connect (DESIGN §8)."""
    run = "0" * 36
    assert SparkTask("q", "7", run).run_of_each == run
    assert SparkTask("q", "7", "mine").run_of_each == ""
    for streaming, wanted in ((True, "s"), (False, ""), (None, "")):
        assert SparkTask(session="s", streaming=streaming).run_of_each == wanted
