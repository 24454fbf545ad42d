"""NEXMark's queries over the log, beside their answers over all events at once (§16)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sharedlog
from benchmarks.nexmark.answers import answers, before, compare
from benchmarks.nexmark.demo import main
from benchmarks.nexmark.driver import started
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries import Setting, stages_of
from benchmarks.nexmark.schemas import OUTPUTS
from benchmarks.nexmark.sides import LogSide
from benchmarks.nexmark.streams import LogStreams, create_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# As many as Q2 needs for a row.
_COUNT = 3000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sharedlog.Log]:
    """A log with NEXMark's streams."""
    with create_log(f"sqlite:///{tmp_path / 'log.db'}") as made:
        yield made


@pytest.mark.parametrize(
    "queries", [pytest.param(("q1",), id="one"), pytest.param(OUTPUTS, marks=pytest.mark.long)]
)
def test_streams_have_the_answers_row_by_row(
    spark: Any, log: sharedlog.Log, tmp_path: Path, queries: tuple[str, ...]
) -> None:
    """Stage by stage, in two runs over the same checkpoints (DESIGN-LOG §16)."""
    events, streams = Events(rate=100), LogStreams(log)
    side = LogSide(f"sqlite:///{tmp_path / 'log.db'}")
    setting = Setting(longest=f"{events.longest_us} microseconds")
    for half in range(2):
        streams.publish(events.tables(half * _COUNT // 2, _COUNT // 2))
        if half:
            streams.publish(events.closing(_COUNT))
        for stage in stages_of(queries):
            frames = {each: side.read(spark, each, stage.name) for each in stage.reads}
            query = started(
                side.write(stage.query(frames, setting), stage.name)
                .option("checkpointLocation", str(tmp_path / "checkpoints" / stage.name))
                .trigger(availableNow=True)
            )
            try:
                query.awaitTermination()
            finally:
                query.stop()
    wanted = answers(events.tables(0, _COUNT), queries)
    for query in queries:
        found = before(streams.rows(query), events.closed_us(_COUNT))
        assert compare(found, wanted[query]).is_none, query
        assert found.total() > 0


@pytest.mark.long
def test_the_demo_finds_nothing_wrong_though_its_driver_is_killed(
    java: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fifth of all tasks fail, too; the last line has the counts (DESIGN-LOG §16)."""
    short = ["--events", "3000", "--queries", "q5", "--kills", "1", "--failing", "20"]
    assert main([*short, "--master", "local[2,20]"]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    found = told["log"]["q5"]
    assert found == {"rows": found["rows"], "wrong": 0, "missing": 0, "duplicates": 0}
    assert found["rows"] > 0
    assert told["killed"]["log"]["driver"] == 1
