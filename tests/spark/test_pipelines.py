"""Declarative Pipelines: rows of their sinks once, and a full refresh (DESIGN §8, §16)."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

import sharedlog
from tests.spark.conftest import METHOD, BankProcess
from tests.spark.piping import Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]
_ROWS = 10


def _input(directory: Path, name: str, files: int) -> list[str]:
    """Write files of which a micro-batch takes one each; the references of their rows."""
    directory.mkdir()
    for file in range(files):
        rows = [
            {"reference": f"{name}{file}-{row}", "account": "alice", "cents": row}
            for row in range(_ROWS)
        ]
        (directory / f"{file}.json").write_text("\n".join(map(json.dumps, rows)))
    return [f"{name}{file}-{row}" for file in range(files) for row in range(_ROWS)]


def _texts(log: sharedlog.Log, stream: str) -> collections.Counter[str]:
    return collections.Counter(each.text for at in range(2) for each in log.read(stream, at))


def _checkpoint(pipeline: Pipeline, *names: str) -> dict[str, Any]:
    """Return what is known of the checkpoint of a flow."""
    (found,) = pipeline.storage.glob(f"_checkpoints/**/{'/'.join(names)}/metadata")
    told: dict[str, Any] = json.loads(found.read_text())
    return told


def test_a_pipelines_sinks_have_each_row_once(java: None, tmp_path: Path) -> None:
    """Killed midway and run again; a full refresh sends nothing before it is adopted (DESIGN §8).

    A flow is a query of its own: two into one sink are told apart by their ids.
    """
    one, other = (_input(tmp_path / name, name, 3) for name in ("one", "other"))
    bank = BankProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/rifl.db", "--pause", "0.05")
    url, names = f"sqlite:///{tmp_path / 'log.db'}", ("paid", "named")
    given = {"target": bank.target, "method": METHOD, "key": "reference", "batchRows": "4"}
    flow, both = (
        {"book": str(tmp_path / "one")},
        [str(tmp_path / each) for each in ("one", "other")],
    )
    sinks: dict[str, dict[str, Any]] = {
        "bank": {"format": "rifl", "options": given, "flows": flow},
        "paid": {
            "format": "sharedlog",
            "options": {"log": url, "stream": "paid"},
            "flows": dict(zip(("first", "second"), both, strict=True)),
        },
        "named": {
            "format": "sharedlog",
            "options": {"log": url, "stream": "named", "name": "named"},
            "flows": {"third": both[0]},
        },
    }
    pipeline = Pipeline(tmp_path / "pipeline", sinks)
    try:
        with sharedlog.create(url) as log:
            for stream in names:
                log.stream(stream, 2)
            killed = pipeline.begin()
            try:
                bank.until_effects(_ROWS + 3)
            finally:
                killed.kill()
            assert 0 < bank.effects().total() < len(one)
            for _ in range(2):
                told = pipeline.run()
                assert "FAILED" not in told, told
            wanted = dict.fromkeys(one, 1)
            assert bank.effects() == wanted
            assert _texts(log, "named") == wanted
            assert _texts(log, "paid") == dict.fromkeys([*one, *other], 1)
            before = _checkpoint(pipeline, "book", "0")
            told = pipeline.run("--full-refresh-all")
            assert "book/1 is a pipeline's checkpoint after a full refresh" in told
            assert "first/1 is a pipeline's checkpoint after a full refresh" in told
            assert "CheckpointWentBack" in told
            assert _checkpoint(pipeline, "book", "1") != before
            # Refused again, until it is asked for.
            sinks["bank"]["options"] = {**given, "adopt": "true"}
            pipeline.run()
            assert bank.effects() == dict.fromkeys(one, 2)
            assert _texts(log, "named") == wanted
            assert _texts(log, "paid") == dict.fromkeys([*one, *other], 1)
    finally:
        bank.close()


def test_a_name_is_one_flows(java: None, tmp_path: Path) -> None:
    """Of two flows into a named sink one has all its rows once, and the other fails (§16)."""
    rows = {name: _input(tmp_path / name, name, 2) for name in ("one", "other")}
    url = f"sqlite:///{tmp_path / 'log.db'}"
    sink = {
        "format": "sharedlog",
        "options": {"log": url, "stream": "paid", "name": "pay"},
        "flows": {f"append_{name}": str(tmp_path / name) for name in rows},
    }
    with sharedlog.create(url) as log:
        log.stream("paid", 2)
        told = Pipeline(tmp_path / "pipeline", {"paid": sink}).run()
        assert "or two have one name" in told
        assert _texts(log, "paid") in [dict.fromkeys(each, 1) for each in rows.values()]
