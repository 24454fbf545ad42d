"""The checker of histories: what it must reject, and what it must not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.check import RULES, History, Undecided, check, linearizable
from chaos.check.__main__ import main
from chaos.check.linearizable import Interval

HISTORIES = Path(__file__).parent / "histories"
REJECTED = sorted(HISTORIES.glob("reject-*.jsonl"))
ACCEPTED = sorted(HISTORIES.glob("accept-*.jsonl"))


@pytest.mark.parametrize("path", REJECTED, ids=lambda path: path.stem)
def test_a_history_that_breaks_a_rule_is_rejected_by_that_rule(path: Path) -> None:
    """Each bad history is rejected, by the rule its name begins with (DESIGN §1, §3)."""
    rule = path.stem.split("-")[1]
    assert rule in {violation.rule for violation in check(History.read(path))}


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_a_history_that_keeps_the_rules_is_accepted(path: Path) -> None:
    """Retries, errors of handlers, unknown outcomes and races are no violations."""
    assert check(History.read(path)) == []


def test_every_rule_has_a_history_that_it_rejects() -> None:
    """A check that cannot fail is none: each rule has test data of its own."""
    found = {path.stem.split("-")[1] for path in REJECTED}
    assert found == set(RULES)


def test_the_command_exits_non_zero_for_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m chaos.check`` tells which rule is broken, and its exit status does too."""
    assert main([str(HISTORIES / "reject-doubled.jsonl")]) == 1
    assert "doubled: call 1" in capsys.readouterr().out
    assert main([str(path) for path in ACCEPTED]) == 0


def test_a_line_that_is_no_event_is_refused(tmp_path: Path) -> None:
    """A broken file is not a history that keeps the rules."""
    path = tmp_path / "broken.jsonl"
    path.write_text('{"call": 1}\n')
    with pytest.raises(ValueError, match=r"broken\.jsonl:1"):
        History.read(path)


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    """What is written is what is read (one form for simulated and real runs)."""
    history = History()
    history.start(0.1, 1, "add", "a", 5, "once")
    history.effect(0.2, 1, "a", 1)
    history.answer(0.2, 1, "executed", "OK", [1, 5])
    history.end(0.3, 1, "executed", "OK", [1, 5], "")
    history.resolved(0.4, 1, "executed", None)
    history.final("a", 1, 5)
    history.write(tmp_path / "history.jsonl")
    assert History.read(tmp_path / "history.jsonl").events == history.events


def _by_trying_all(operations: list[Interval]) -> bool:
    for count in range(len(operations) + 1):
        for order in itertools.permutations(operations, count):
            if any(each.must and each not in order for each in operations):
                continue
            version = total = 0
            for at, each in enumerate(order):
                if any(
                    later.ended is not None and later.ended < each.started
                    for later in order[at + 1 :]
                ):
                    break
                if each.amount is not None:
                    version, total = version + 1, total + each.amount
                if each.version not in (None, version) or each.total not in (None, total):
                    break
            else:
                return True
    return False


@st.composite
def _intervals(draw: st.DrawFn) -> list[Interval]:
    # All versions known, as in simulated runs, is decided without a search.
    known = draw(st.booleans())
    times = draw(st.permutations(range(8)))
    operations = []
    for call in range(draw(st.integers(1, 4))):
        started, ended = sorted((times[2 * call], times[2 * call + 1]))
        amount = draw(st.sampled_from([None, 1, 2]))
        told = draw(st.booleans()) or (known and amount is None)
        must = told or known or (amount is not None and draw(st.booleans()))
        version = st.integers(0, 3)
        operations.append(
            Interval(
                call,
                started,
                ended if told else None,
                amount,
                draw(version if known else st.none() | version) if told or known else None,
                draw(st.none() | st.integers(0, 4)) if told else None,
                must,
            )
        )
    return operations


@given(_intervals())
def test_the_search_agrees_with_trying_every_order(operations: list[Interval]) -> None:
    """The checker finds an order if and only if there is one (Wing and Gong 1993)."""
    assert linearizable(operations) == _by_trying_all(operations)


def test_a_search_that_grows_too_large_is_not_taken_for_a_yes() -> None:
    """Undecided is said aloud, and the checks count it as a violation."""
    operations = [Interval(call, call, None, 1 << call, must=False) for call in range(20)]
    operations.append(Interval(20, 20, 21, 1, 1, 10**9))
    with pytest.raises(Undecided):
        linearizable(operations, limit=1000)
