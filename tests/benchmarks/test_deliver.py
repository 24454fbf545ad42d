"""The benchmark of deliveries, measured small: ``make bench-deliver`` has the size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.deliver.away import beside_a_stopped_one, caught_up
from benchmarks.deliver.board import Board
from benchmarks.deliver.delays import Delays, Side, ahead, apply_delays, player_delays
from benchmarks.deliver.fleet import Fleet
from benchmarks.deliver.messages import body_of, number_of, shares, small
from benchmarks.deliver.publishing import Rifl
from benchmarks.deliver.report import Report
from benchmarks.deliver.sustained import sustained, window
from benchmarks.deliver.worker import Worker
from benchmarks.pairs import Spread


def test_keys_of_transactions_go_to_each_target_as_often() -> None:
    """Of ten keys a transaction, ten targets get one each; of two transactions, twenty do (§15)."""
    assert shares(0, 1) == {0: list(range(10))}
    assert [len(each) for each in shares(30, 5).values()] == [2] * 5
    assert sorted({**shares(0, 20), **shares(10, 20)}) == list(range(20))
    assert len(body_of(7)) == 1024
    assert number_of(body_of(7)) == 7
    assert number_of(small()) < 0


def test_a_board_is_one_for_all_that_open_it(tmp_path: Path) -> None:
    """What one writes, another reads; who waits for what never comes is told (§15)."""
    one, other = Board(tmp_path / "board"), Board(tmp_path / "board")
    one.committed[3] = 42
    other.wait(other.committed, [3], 0.0)
    assert other.committed[3] == 42
    assert other.started[3] == other.dispatched[3] == 0
    with pytest.raises(TimeoutError):
        other.wait(other.committed, [3, 4], 0.0)


def test_delays_are_compared_pair_by_pair() -> None:
    """How far ahead is the median of the pairs' ratios, whatever the rounds were like (§15)."""
    slow = [Delays.of([round_ms * 10_000_000] * 100) for round_ms in (1, 2, 30)]
    fast = [Delays.of([round_ms * 1_000_000] * 100) for round_ms in (1, 2, 30)]
    assert ahead(fast, slow, lambda each: each.p99).median == pytest.approx(10.0)


@pytest.mark.slow
def test_delays_are_measured_in_real_processes(tmp_path: Path) -> None:
    """A player, a target and a fan-out say when a message was where (§15)."""
    with Fleet(tmp_path / "fleet", 1) as fleet:
        fleet.play([fleet.declared(0)])
        with Worker("fanout", str(fleet.folder / "board"), *fleet.bare_ports) as fanout:
            found = player_delays(fleet, fanout, 1, rounds=1, transactions=1)
        assert found.keys() == {"player", "stream", "unary"}
        assert all(each.median > 0 for (each,) in found.values())
        side = Side(Rifl(fleet.log), fleet.board, fleet.numbers)
        assert len(apply_delays(side, 1, 1)) == 10


@pytest.mark.long
def test_each_other_part_measures_real_processes(tmp_path: Path) -> None:
    """A stopped target, a missed backlog and a rate come out of real processes (§15)."""
    with Fleet(tmp_path / "fleet", 2) as fleet:
        side = Side(Rifl(fleet.log), fleet.board, fleet.numbers)
        beside = beside_a_stopped_one(fleet, side, 2, rounds=1, transactions=2)
        assert all(each.p99 > 0 for (each,) in beside.values())
        catching = caught_up(fleet, 3000, rounds=1, pace=100, alone=3000)
        assert catching.alone[0] > 0 < catching.beside[0]
        rates = sustained(fleet, rounds=1, seconds=0.5)
        assert rates.deliveries[0] > 0 < rates.calls[0]


def test_a_rate_is_of_as_much_work_on_either_side() -> None:
    """A window in which others had the processors counts what its rival would have begun (§15)."""
    looks = itertools.count()
    count, took_s = window(lambda: 10 * next(looks), 0.0, 50)
    assert count >= 50
    assert took_s > 0


def test_a_report_says_what_is_missed() -> None:
    """What is not reached is said so, in the table and in the figures."""
    report = Report()
    report.add("slow", Spread(2.0, 1.5, 2.5), "2 to 1", most=1.3)
    report.add("fast", Spread(20.0, 15.0, 25.0), "", least=10, ms=3)
    report.add("whatever", Spread(1.0, 1.0, 1.0), "")
    assert [aim for *_, aim in report.rows] == ["at most 1.3 (missed)", "at least 10", ""]
    assert [each.get("reached") for each in report.figures.values()] == [False, True, None]
    assert report.markdown.count("\n") == 5
