"""The statistics of paired runs, and the file they are kept in."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from benchmarks.callers import Load
from benchmarks.cases import cases
from benchmarks.pairs import Spread, figure_of, run_pairs
from benchmarks.results import Results
from benchmarks.tables import is_reached, markdown, row


def test_the_interval_holds_the_median_of_fifteen_pairs_with_95_percent() -> None:
    """By the sign test the 4th and the 12th of 15 values bound their median with 96 %."""
    values = [float(value) for value in range(1, 16)]
    assert Spread.of(values[::-1]) == (8.0, 4.0, 12.0)


def test_pairs_alternate_and_are_compared_pair_by_pair() -> None:
    """Who goes first changes, and a ratio is of two runs that were next to each other."""
    order = []
    speeds = itertools.count(1)

    def run(name: str, factor: float) -> Load:
        order.append(name)
        # The machine gets faster all the time.
        return Load(next(speeds) // 2 * factor + 1e-9, 1.0, 1.0, 1.0)

    figure = figure_of(run_pairs(lambda: run("ours", 2.0), lambda: run("theirs", 1.0), 4))
    assert order == ["ours", "theirs"] + ["ours", "theirs", "theirs", "ours"] * 2
    assert figure.pairs == 4
    assert 1.2 < figure.throughput.median < 3


def test_a_part_replaces_its_figures_and_leaves_the_others(tmp_path: Path) -> None:
    """Parts merge into one file, in the order of the cases; what is no case any more goes."""
    path = tmp_path / "results.json"
    Results(path).put("figures", "b", {"value": 1}, ["a", "b"])
    Results(path).put("figures", "gone", {"value": 1}, ["a", "b", "gone"])
    Results(path).put("figures", "a", {"value": 2}, ["a", "b"])
    Results(path).put("figures", "b", {"value": 3}, ["a", "b"])
    content = json.loads(path.read_text())
    found = [(name, figure["value"]) for name, figure in content["figures"].items()]
    assert found == [("a", 2), ("b", 3)]
    assert {"cores", "kernel", "python"} <= set(content["machine"])
    assert "grpcio" in content["versions"]
    assert "at" in content["figures"]["a"]


def test_a_figure_reaches_its_targets_or_says_that_it_misses_them() -> None:
    """Throughput is to be at least its target, everything else at most."""
    loads = [Load(80.0, 1.25, 10.0, 10.0), Load(100.0, 1.0, 10.0, 10.0)]
    figure = figure_of(run_pairs(lambda: loads[0], lambda: loads[1], 3)).as_json()
    for targets, reached in (
        ({"throughput": 0.75, "latency": 1.3, "client_cpu": None}, True),
        ({"throughput": 0.85, "latency": None, "client_cpu": None}, False),
        ({"throughput": None, "latency": 1.2, "client_cpu": None}, False),
    ):
        told = {**figure, "targets": targets}
        assert is_reached(told) is reached
        assert ("missed" in row("name", told)[-1]) is not reached


def test_the_tables_of_the_docs_have_a_case_a_row() -> None:
    """Flavors and callers are columns; a case without one of them has an empty cell."""
    figure = figure_of(
        run_pairs(lambda: Load(80.0, 1.25, 10, 10), lambda: Load(100.0, 1.0, 10, 10), 3)
    ).as_json()
    names = (
        "sync, 1 caller, memory",
        "sync, 16 callers, memory",
        "sync, 16 callers, redis, a guard",
    )
    throughput, latency = markdown(dict.fromkeys(names, figure)).split("\n\n")
    assert throughput.splitlines() == [
        "| throughput | sync, 1 caller | sync, 16 callers |",
        "| --- | --- | --- |",
        "| memory | 0.80 (0.80-0.80) | 0.80 (0.80-0.80) |",
        "| redis, a guard |  | 0.80 (0.80-0.80) |",
    ]
    assert "| memory | 1.25 (1.25-1.25) | 1.25 (1.25-1.25) |" in latency


def test_every_figure_has_a_name_of_its_own() -> None:
    """No case overwrites another one's figure."""
    names = [(case.name, case.callers) for case in cases()]
    assert len(names) == len(set(names))
