"""Notes of calls that may kill a leader: DESIGN §7, invariant 12."""

from __future__ import annotations

from typing import Any

from curp._core.appending import AppendBatch, Appending
from curp._core.leader import Leader, SpeedWish
from curp._core.poison import RETRIED, Case, Ledger, PoisonWatch, ProcessDeath, case_of, watch_for
from curp._core.poison_notes import NoteDown, PoisonNotes
from curp._core.steps import Rest
from curp.log._errors import LeadershipOver, LogUnavailable
from rifl.core._serving.namespace import namespace_id
from rifl.core._shared.identity import RpcId
from tests.curp.core.groups import METHOD, call

_NAME = bytes(16)


def _case(seq: int) -> Case:
    return case_of(call(1, seq), RETRIED)


def _appending(watch: PoisonWatch = PoisonWatch()) -> tuple[Leader, Appending]:  # noqa: B008 - never changed
    leader = Leader(4, 0, witnessed=False)
    return leader, Appending(leader, lambda: _NAME, PoisonNotes(watch))


def _noted(step: Any) -> list[int | None]:
    assert isinstance(step, NoteDown)
    return [case.rpc_id.seq for case in step.notes]


def test_what_is_new_though_it_was_sent_before_is_noted() -> None:
    """A first attempt costs nothing; a later one that nobody knows may have killed (12)."""
    notes = PoisonNotes(PoisonWatch(suspects=frozenset({RpcId(1, 9)})))
    assert not notes.watches(call(1, 1), 0.0)
    assert notes.watches(call(1, 1, attempt=2), 0.0)
    assert notes.watches(call(1, 9), 0.0)


def test_a_caller_who_cannot_say_that_it_asks_again_is_noted_after_a_death() -> None:
    """For a minute; then nobody asks for what the last leader died of (invariant 12)."""
    plain = call(namespace_id(b"peer"), None, b"key")
    assert not PoisonNotes(PoisonWatch(), 5.0).watches(plain, 5.0)
    notes = PoisonNotes(PoisonWatch(wary=True), 5.0)
    assert notes.watches(plain, 6.0)
    assert not notes.watches(call(1, 1), 6.0)
    assert not notes.watches(plain, 70.0)


def test_a_call_waits_until_the_engine_has_its_note() -> None:
    """Notes that wait are put down together, before what is appended (invariant 12)."""
    leader, appending = _appending()
    leader.place("x", 1, 0.0, frozenset({1}), SpeedWish(0, registered=True))
    leader.demand(1)
    appending.notes.ask("one", {"a": _case(1)})
    appending.notes.ask("two", {"b": _case(2), "c": _case(3)})
    step = appending.next(0.0)
    assert _noted(step) == [1, 2, 3]
    assert isinstance(appending.next(0.0), Rest)
    assert list(appending.noted()) == ["one", "two"]
    assert isinstance(appending.next(0.0), AppendBatch)


def test_a_note_goes_when_its_call_has_ended() -> None:
    """Behind everything that is due: late costs a suspicion, and no call's time (12)."""
    leader, appending = _appending()
    appending.notes.ask("one", {"a": _case(1), "b": _case(2)})
    appending.next(0.0)
    appending.noted()
    appending.notes.ended("a")
    leader.place("x", 1, 0.0, frozenset({1}), SpeedWish(0, registered=True))
    leader.demand(1)
    assert isinstance(appending.next(0.0), AppendBatch)
    appending.appended(1)
    assert _noted(appending.next(0.0)) == [2]
    appending.noted()
    appending.notes.ended("b")
    assert _noted(appending.next(0.0)) == []
    appending.noted()
    assert isinstance(appending.next(0.0), Rest)


def test_a_careful_leader_runs_one_noted_call_at_a_time() -> None:
    """What is noted when it dies is then what it died of (invariant 12)."""
    _, appending = _appending(PoisonWatch(careful=True))
    appending.notes.ask("one", {"a": _case(1)})
    appending.notes.ask("two", {"b": _case(2)})
    assert _noted(appending.next(0.0)) == [1]
    assert list(appending.noted()) == ["one"]
    assert isinstance(appending.next(0.0), Rest)
    appending.notes.ended("a")
    assert _noted(appending.next(0.0)) == [2]
    assert list(appending.noted()) == ["two"]


def test_a_note_that_may_not_be_there_is_put_down_again() -> None:
    """While the engine is away nobody begins; one who gave up is not noted (invariant 12)."""
    _, appending = _appending()
    appending.notes.ask("one", {"a": _case(1)})
    appending.notes.ask("two", {"b": _case(2)})
    assert _noted(appending.next(0.0)) == [1, 2]
    assert appending.failed(LogUnavailable("away"), 0.0)
    rest = appending.next(0.0)
    assert isinstance(rest, Rest)
    assert rest.seconds is not None
    appending.notes.ended("b")
    assert _noted(appending.next(rest.seconds)) == [1]
    assert set(appending.noted()) == {"one", "two"}
    appending.notes.ask("three", {"c": _case(3)})
    appending.next(1.0)
    assert not appending.failed(LeadershipOver("by another"), 1.0)
    assert appending.next(1.0) is None
    assert appending.notes.waiting() == ["three"]


def test_the_ledger_is_bounded_and_keeps_what_counts() -> None:
    """Suspects go first, and an operator's word never (DESIGN §9)."""
    ledger = Ledger().died([_case(1)], 1)
    case = ledger.cases[0]
    assert (case.deaths, case.since_us, case.last_us) == (1, 1, 1)
    ledger = ledger.decided(case, "alice", "it kills")
    for seq in range(2, 200):
        ledger = ledger.died([_case(seq)], seq)
    ledger = ledger.died([_case(seq) for seq in range(1000, 2000)], 2000)
    assert len(ledger.cases) < 1000
    kept = ledger.find(RpcId(1, 1))
    assert kept is not None
    assert kept.who == "alice"
    assert ledger.find(RpcId(1, 199)) is not None
    watch = watch_for(ledger, 3, careful=True, wary=False)
    assert set(watch.condemned) == {RpcId(1, 1)}
    assert RpcId(1, 199) in watch.suspects
    assert watch.condemned[RpcId(1, 1)].method == METHOD


def test_who_lives_on_takes_its_death_back_in_whatever_order() -> None:
    """Said before the death is counted or after that, it is none; others' deaths stay (12)."""
    counted = Ledger().died([_case(1)], 5, configuration=3).died([_case(1)], 7, configuration=4)
    counted = counted.died([_case(1)], 9, configuration=6)
    case = counted.cases[0]
    assert (case.deaths, case.since_us, case.last_us) == (3, 5, 9)
    after = counted.lived({3, 6})
    before = Ledger().lived({3}).lived({6})
    for at_us, number in ((5, 3), (7, 4), (9, 6)):
        before = before.died([_case(1)], at_us, configuration=number)
    assert before == after
    case = after.cases[0]
    assert (case.deaths, case.since_us, case.last_us) == (1, 7, 7)
    assert case.died == (ProcessDeath(4, 7),)
    (case,) = after.lived({4}).cases
    assert (case.deaths, case.since_us, case.last_us, case.died) == (0, 0, 0, ())


def test_a_death_of_no_known_number_stays() -> None:
    """Who replays notes no number, nor did an earlier program (invariant 12)."""
    ledger = Ledger().died([_case(1)], 5).died([_case(1)], 7, configuration=4)
    assert ledger.cases[0].deaths == 2
    (case,) = ledger.lived({0, 3, 4}).cases
    assert (case.deaths, case.since_us, case.last_us) == (1, 5, 5)
    # Nor does an answer change that was logged for it.
    closed = ledger.close({RpcId(1, 1)})
    assert closed.lived({4}).cases == closed.cases


def test_a_death_is_counted_once_and_what_was_outlived_is_bounded() -> None:
    """The step that counts may be asked for twice, after a lost reply (DESIGN §9)."""
    once = Ledger().died([_case(1)], 5, configuration=3)
    assert once.died([_case(1)], 6, configuration=3) == once
    ledger = Ledger()
    for number in range(1, 200):
        ledger = ledger.lived({number})
    assert len(ledger.outlived) < 100
    assert ledger.outlived[-1] == 199
    assert not ledger.died([_case(1)], 5, configuration=199).cases
