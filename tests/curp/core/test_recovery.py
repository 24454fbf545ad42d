"""Taking over: DESIGN §7, invariants 5 and 6; CURP §3.3."""

from __future__ import annotations

import math
from typing import Any

from curp._core.entries import LeaderStarted, Operation, SecretsPut, SetAside
from curp._core.leader import LeaderBounds
from curp._core.poison import HELD, LOGGED, Case, Ledger, PoisonWatch
from curp._core.poison_notes import NoteDown
from curp._core.recovery import (
    AcceptedLoss,
    Append,
    Freeze,
    ReadAcceptedLoss,
    ReadToEnd,
    ReadWitnessList,
    Recovered,
    RunRecovered,
    TakeNumber,
    recover,
)
from curp._core.setting_aside import AwaitDecision, Conclude, CountDeaths, Left, ReadPoison
from curp._core.state import GroupState, Witnessed
from curp._core.steps import VisibleWait
from curp._core.witness_list import Publish, StartWitnesses, WitnessList
from curp._core.witnessed_call import WitnessedCall
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord
from tests.curp.core.groups import METHOD, call, committed, operation

_OLD = WitnessList(3, ("w1", "w2"), True, ("w1", "w2"))


class _Shell:
    """Carries the steps out on plain values, and notes them."""

    def __init__(self, state: GroupState, old: WitnessList | None = _OLD, number: int = 4) -> None:
        self.state = state
        self.old = old
        self.number = number
        self.held: dict[str, list[WitnessedCall] | None] = {"w1": [], "w2": []}
        self.startable = {"w1", "w2"}
        self.steps: list[Any] = []
        self.max_waits = 3
        self.accepted: AcceptedLoss | None = None
        self.response = b"run again"
        self.ledger = Ledger()
        self.notes: tuple[Case, ...] = ()
        # The number under which these were noted.
        self.noted = 3
        # Of whom it turns out, while the recovery waits, that they live.
        self.lives: tuple[int, ...] = ()
        # What an operator says while the recovery waits.
        self.word: tuple[RpcId, str, str] | None = None
        self.patience_s = math.inf
        self.now = 0.0

    def run(self, wanted: tuple[str, ...] = ("w1", "w2"), **bounds: Any) -> Recovered | None:
        rule = recover(
            "r1",
            self.state,
            wanted,
            lambda: self.now,
            secret=b"s" * 32,
            bounds=LeaderBounds(**bounds),
            patience_s=self.patience_s,
        )
        answer: Any = None
        try:
            while True:
                step = rule.send(answer)
                self.steps.append(step)
                answer = self._do(step)
                if isinstance(step, VisibleWait):
                    self.now += step.seconds
                    self.max_waits -= 1
                    if not self.max_waits:
                        return None
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _do(self, step: Any) -> Any:
        if isinstance(step, TakeNumber):
            return self.number
        if isinstance(step, ReadWitnessList):
            return self.old
        if isinstance(step, ReadToEnd):
            return self.state.applied
        if isinstance(step, Freeze):
            told = [(at, self.held[at]) for at in step.addresses if self.held[at] is not None]
            return told[0] if told else None
        if isinstance(step, ReadAcceptedLoss):
            return self.accepted
        if isinstance(step, ReadPoison):
            return Left(self.ledger, self.notes, self.noted)
        if isinstance(step, CountDeaths):
            self.ledger = self.ledger.died(step.fatal, 7, configuration=step.configuration)
            self.notes = ()
            return self.ledger
        if isinstance(step, NoteDown):
            self.notes = step.notes
        if isinstance(step, AwaitDecision):
            self.ledger = self.ledger.wait([step.rpc_id])
            return self.ledger
        if isinstance(step, Conclude):
            self.ledger = self.ledger.close(step.closed).forget(step.answered)
            return self.ledger
        if isinstance(step, VisibleWait) and self.lives:
            self.ledger = self.ledger.lived(self.lives)
        if isinstance(step, VisibleWait) and self.word is not None:
            case = self.ledger.find(self.word[0])
            assert case is not None
            self.ledger = self.ledger.decided(case, *self.word[1:])
        if isinstance(step, RunRecovered):
            return CompletionRecord(response=self.response)
        if isinstance(step, Append):
            self.old = step.witnesses or self.old
            return step.expected_tail + len(step.entries)
        if isinstance(step, StartWitnesses):
            return [address for address in step.addresses if address in self.startable]
        if isinstance(step, Publish):
            self.old = step.witnesses
        return None

    def kinds(self) -> list[str]:
        return [type(step).__name__ for step in self.steps]


def _held(client_id: int, seq: int, **more: Any) -> WitnessedCall:
    return WitnessedCall(call(client_id, seq, **more), b"request", frozenset({seq}))


def test_the_order_is_the_one_that_loses_nothing() -> None:
    """Number, list, log, freeze, replay, append, start, and only then serve (invariant 5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held["w1"] = [_held(1, 2)]
    found = shell.run()
    assert shell.kinds() == [
        "TakeNumber",
        "ReadWitnessList",
        "ReadToEnd",
        "Freeze",
        "CheckNumbers",
        "ReadPoison",
        "NoteDown",
        "RunRecovered",
        "Append",
        "StartWitnesses",
        "CheckNumbers",
        "Publish",
    ]
    assert shell.steps[3] == Freeze(("w1", "w2"), 3)
    append = shell.steps[8]
    assert append.expected_tail == 2
    assert append.witnesses == WitnessList(4, ("w1", "w2"), False, ("w1", "w2"))
    assert [type(entry) for entry in append.entries] == [Operation, LeaderStarted, SecretsPut]
    assert shell.steps[9] == StartWitnesses(("w1", "w2"), 4)
    assert shell.steps[11] == Publish(WitnessList(4, ("w1", "w2"), True, ("w1", "w2")))
    assert found == Recovered(shell.steps[11].witnesses, 5, "w1", 1, 1, 0, PoisonWatch(wary=True))
    assert shell.state.applied == 5


def test_requests_are_filtered_by_the_trackers() -> None:
    """In the log, acknowledged, or of a client the log does not know: not run (invariant 6)."""
    shell = _Shell(committed(operation(1, 1), operation(1, 2, first_incomplete=2)))
    shell.held["w1"] = [_held(1, 1), _held(1, 2), _held(1, 3), _held(77, 1)]
    found = shell.run()
    assert found is not None
    assert (found.held, found.replayed, found.dropped) == (4, 1, 3)
    runs = [step for step in shell.steps if isinstance(step, RunRecovered)]
    assert [run.witnessed.call.seq for run in runs] == [3]


def test_acknowledgements_of_replayed_requests_are_ignored() -> None:
    """A request that acknowledges another on the witness does not take it away (invariant 6)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held["w1"] = [
        _held(1, 3, first_incomplete=3),
        _held(1, 2),
    ]
    found = shell.run()
    assert found is not None
    assert found.replayed == 2
    append = next(step for step in shell.steps if isinstance(step, Append))
    assert all(
        entry.first_incomplete == 1 and entry.completed == ()
        for entry in append.entries
        if isinstance(entry, Operation)
    )


def test_every_replayed_identity_is_registered() -> None:
    """The same request held twice, or sent again, is known (invariant 6)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held["w1"] = [_held(1, 2), _held(1, 2)]
    found = shell.run()
    assert found is not None
    assert found.replayed == 1
    assert shell.state.witnessed(call(1, 2)) is Witnessed.KNOWN


def test_requests_under_other_keys_than_their_own_come_last() -> None:
    """Nobody was answered first about them: behind the others they change no answer (3, 5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held["w1"] = [_held(1, 2)._replace(covered=False), _held(1, 4), _held(1, 3)]
    shell.run()
    runs = [step for step in shell.steps if isinstance(step, RunRecovered)]
    assert [run.witnessed.call.seq for run in runs] == [3, 4, 2]


def test_a_witness_that_restarted_is_passed_over_for_one_that_did_not() -> None:
    """One that never restarted under the old number is needed, and is enough (invariant 5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": [_held(1, 2)]}
    found = shell.run()
    assert found is not None
    assert (found.frozen, found.replayed) == ("w2", 1)


def test_with_no_such_witness_it_waits_and_never_serves() -> None:
    """The wait names what is waited for, and nothing is appended (invariant 5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": None}
    assert shell.run() is None
    assert set(shell.kinds()[3:]) == {"Freeze", "CheckNumbers", "ReadAcceptedLoss", "VisibleWait"}
    assert "w1, w2" in shell.steps[-1].reason


def test_it_gives_up_what_reaches_no_witness_and_has_done_nothing() -> None:
    """After its patience another replica may try; the list in force stays the old one (5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": None}
    shell.patience_s, shell.max_waits = 1.0, 100
    assert shell.run() is None
    assert 1.0 <= shell.now < 1.5
    assert shell.old == _OLD
    assert "Append" not in shell.kinds()


def test_what_it_gives_up_for_is_said_though_its_patience_was_over_at_once() -> None:
    """A witness may be waited for as long as that: else nobody ever heard the reason (5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": None}
    shell.patience_s = 0.0
    assert shell.run() is None
    assert "w1, w2" in shell.steps[-1].reason


def test_an_operator_accepts_the_loss_of_one_number_only() -> None:
    """Whoever said it about another list did not speak of this one; the log has who (5)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": None}
    shell.accepted = AcceptedLoss(2, "alice", "an older trouble")
    assert shell.run() is None
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": None, "w2": None}
    shell.accepted = AcceptedLoss(3, "alice", "both burnt")
    found = shell.run()
    assert found is not None
    assert (found.frozen, found.held) == ("", 0)
    append = next(step for step in shell.steps if isinstance(step, Append))
    assert append.entries[0] == LeaderStarted(4, "r1", 0, "alice: both burnt")


def test_the_first_leader_of_a_group_has_nobody_to_freeze() -> None:
    """A group without a list begins with the one it was given."""
    shell = _Shell(GroupState(), old=None, number=1)
    found = shell.run(("w9",))
    assert found is not None
    assert "Freeze" not in shell.kinds()
    assert found.witnesses == WitnessList(1, (), True, ("w9",))


def test_a_list_that_was_never_served_under_is_not_frozen() -> None:
    """A crash between the append and the start of the witnesses hangs nobody (invariant 5)."""
    shell = _Shell(committed(operation(1, 1)), old=WitnessList(3, ("w1",), False, ("w1", "w2")))
    found = shell.run()
    assert found is not None
    assert "Freeze" not in shell.kinds()
    assert found.witnesses.witnesses == ("w1", "w2")


def test_a_crash_at_any_step_is_taken_over_by_the_next_recovery() -> None:
    """Whatever the first recovery got done, the next one has every request (invariant 5)."""
    for crash_at in range(1, 10):
        shell = _Shell(committed(operation(1, 1)))
        shell.held["w1"] = [_held(1, 2)]
        log: list[Any] = []
        rule = recover("r1", shell.state, (), lambda: 0.0, secret=b"s" * 32)
        answer: Any = None
        started = False
        for _ in range(crash_at):
            try:
                step = rule.send(answer)
            except StopIteration:
                break
            answer = shell._do(step)
            if isinstance(step, Append):
                log += step.entries
            if isinstance(step, StartWitnesses):
                # From now on it holds nothing, and cannot be frozen under the old number.
                started = True
        again = _Shell(committed(operation(1, 1), *log), old=shell.old, number=5)
        again.held = {"w1": None, "w2": None} if started else {"w1": [_held(1, 2)], "w2": None}
        if shell.old is not None and shell.old.serving and started:
            again.held = {"w1": [], "w2": []}
        found = again.run()
        assert found is not None
        assert again.state.witnessed(call(1, 2)) is Witnessed.KNOWN


def test_what_a_witness_held_is_appended_in_bounded_pieces() -> None:
    """No append holds more than its bounds, and the list changes with the last (invariant 5)."""
    for bounds in ({"append_entries": 3}, {"batch_bytes": 10_000}):
        shell = _Shell(committed(operation(1, 1)))
        shell.held["w1"] = [_held(1, seq) for seq in range(2, 12)]
        shell.response = b"r" * 2000
        found = shell.run(**bounds)
        assert found is not None
        assert (found.replayed, found.tail) == (10, 14)
        appends = [step for step in shell.steps if isinstance(step, Append)]
        assert [append.witnesses is None for append in appends] == [True] * 3 + [False]
        tail = 2
        for append in appends:
            assert append.expected_tail == tail
            assert len(append.entries) <= 4
            tail += len(append.entries)
        assert [type(entry) for entry in appends[-1].entries[-2:]] == [LeaderStarted, SecretsPut]
        assert shell.state.applied == tail == found.tail


def test_a_crash_between_two_pieces_loses_and_repeats_nothing() -> None:
    """The old list is in force until the last piece, and what is logged is filtered (5, 6)."""
    shell = _Shell(committed(operation(1, 1)))
    held = [_held(1, seq) for seq in range(2, 8)]
    shell.held["w1"] = held
    rule = recover(
        "r1", shell.state, (), lambda: 0.0, secret=b"s" * 32, bounds=LeaderBounds(append_entries=2)
    )
    answer: Any = None
    log: list[Any] = []
    while len(log) < 4:
        step = rule.send(answer)
        answer = shell._do(step)
        if isinstance(step, Append):
            log += step.entries
    assert shell.old == _OLD
    again = _Shell(committed(operation(1, 1), *log), old=shell.old, number=5)
    again.held["w1"] = held
    found = again.run()
    assert found is not None
    assert (found.held, found.replayed, found.dropped) == (6, 2, 4)


def test_what_does_not_fit_the_log_stops_no_recovery() -> None:
    """An answer is replaced by its refusal; a request that no leader took is not run (5)."""
    shell = _Shell(committed(operation(1, 1)))
    huge = _held(1, 3)._replace(request=b"q" * 5000)
    shell.held["w1"] = [_held(1, 2), huge]
    shell.response = b"r" * 5000
    found = shell.run(batch_bytes=5000)
    assert found is not None
    runs = [step for step in shell.steps if isinstance(step, RunRecovered)]
    assert [run.witnessed.call.seq for run in runs] == [2]
    answers = {
        entry.seq: (entry.answer.reason, entry.refusal)
        for step in shell.steps
        if isinstance(step, Append)
        for entry in step.entries
        if isinstance(entry, Operation)
    }
    assert answers == {2: ("RESPONSE_TOO_LARGE", False), 3: ("NOT_EXECUTED", True)}


def test_a_witness_whose_start_was_not_acknowledged_is_left_out() -> None:
    """Asked again later it could have restarted in between (invariant 2)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.startable = {"w2"}
    found = shell.run()
    assert found is not None
    assert found.witnesses == WitnessList(4, ("w2",), True, ("w1", "w2"))


def _poisoned(deaths: int, **more: Any) -> _Shell:
    """A group one of whose witnesses holds a call that so many processes died of."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held = {"w1": [_held(1, 2), _held(1, 3)], "w2": [_held(1, 2), _held(1, 3)], **more}
    shell.ledger = Ledger((Case(RpcId(1, 3), METHOD, HELD, deaths),))
    return shell


def _entries(shell: _Shell) -> list[Operation]:
    appends = [step for step in shell.steps if isinstance(step, Append)]
    return [each for step in appends for each in step.entries if isinstance(each, Operation)]


def test_one_note_stands_for_what_is_replayed_and_a_suspect_has_its_own() -> None:
    """Noted before it runs, so that a death is counted; alone where it is suspected (12)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.held["w1"] = [_held(1, seq) for seq in (2, 3, 4, 5)]
    shell.ledger = Ledger((Case(RpcId(1, 4), METHOD, HELD),))
    shell.run()
    noted: list[Any] = []
    for step in shell.steps:
        if isinstance(step, NoteDown):
            noted.append([case.rpc_id.seq for case in step.notes])
        elif isinstance(step, RunRecovered):
            noted.append(step.witnessed.call.seq)
    assert noted == [[2, 3], 2, 3, [4], 4, [5], 5]
    # In the log, it is no suspect any more.
    assert shell.ledger == Ledger()


def test_what_was_noted_alone_when_a_leader_died_is_counted() -> None:
    """One alone died of it; of several each is a suspect; what is in the log killed nobody (12)."""
    noted = tuple(Case(RpcId(1, seq), METHOD, HELD) for seq in (1, 2, 3))
    for notes, deaths in ((noted[:2], {2: 1}), (noted, {2: 0, 3: 0})):
        shell = _Shell(committed(operation(1, 1)))
        shell.notes = notes
        found = shell.run()
        assert found is not None
        assert {case.rpc_id.seq: case.deaths for case in shell.ledger.cases} == deaths
        assert (found.watch.careful, found.watch.wary) == (True, True)
    # Whoever ended its number did not die.
    shell = _Shell(committed(operation(1, 1)), _OLD._replace(serving=False))
    shell.notes = noted
    found = shell.run()
    assert found is not None
    assert (shell.ledger, found.watch.careful, found.watch.wary) == (Ledger(), False, False)


def test_what_a_leader_left_noted_that_lives_killed_nobody() -> None:
    """It stepped down, and said so before anybody counted: nobody need be careful (12)."""
    shell = _Shell(committed(operation(1, 1)))
    shell.notes = (Case(RpcId(1, 2), METHOD, HELD),)
    shell.ledger = Ledger().lived({3})
    found = shell.run()
    assert found is not None
    assert (shell.ledger.cases, shell.notes) == ((), ())
    assert (found.watch.careful, found.watch.suspects) == (False, frozenset())


def test_a_recovery_goes_on_when_those_it_took_for_dead_live() -> None:
    """It waits for an operator only as long as that many deaths stand (invariant 12)."""
    shell = _poisoned(0)
    case = Case(RpcId(1, 3), METHOD, HELD)
    shell.ledger = Ledger()
    for number in (1, 2):
        shell.ledger = shell.ledger.died([case], number, configuration=number)
    shell.notes, shell.lives = (case,), (2,)
    found = shell.run()
    assert found is not None
    assert [step.reason.split(":")[0] for step in shell.steps if isinstance(step, VisibleWait)] == [
        "an operator"
    ]
    assert found.replayed == 2
    assert all(not each.refusal for each in _entries(shell))


def test_a_call_that_another_witness_does_not_hold_is_set_aside() -> None:
    """Not accepted by all, nor in the log: nobody has its answer (invariants 1 and 12)."""
    shell = _poisoned(3, w2=[_held(1, 2)])
    found = shell.run()
    assert found is not None
    assert [step.witnessed.call.seq for step in shell.steps if isinstance(step, RunRecovered)] == [
        2
    ]
    aside = next(each for each in _entries(shell) if each.seq == 3)
    assert aside.refusal
    assert (aside.answer.reason, aside.set_aside) == ("OUTCOME_UNKNOWN", SetAside(3))
    assert shell.state.witnessed(call(1, 3)) is Witnessed.KNOWN
    (case,) = shell.ledger.cases
    assert case.closed


def test_a_call_that_may_have_been_answered_waits_for_an_operator() -> None:
    """Held by all witnesses, or by all that can be asked: only a person gives it up (12)."""
    for more in ({}, {"w2": None}):
        shell = _poisoned(3, **more)
        assert shell.run() is None
        assert "an operator" in shell.steps[-1].reason
        assert "1/3" in shell.steps[-1].reason
        # An operator's command sees by it which call it is.
        assert [case.rpc_id for case in shell.ledger.cases if case.awaited] == [RpcId(1, 3)]
        assert not _entries(shell)
    shell = _poisoned(3)
    shell.word = (RpcId(1, 3), "alice", "it kills")
    assert shell.run() is not None
    aside = next(each for each in _entries(shell) if each.seq == 3)
    assert aside.set_aside == SetAside(3, "alice", "it kills")
    assert "alice: it kills" in aside.answer.details


def test_an_entry_that_was_given_up_is_so_once() -> None:
    """A leader that said so and died before it noted that has the next one note it alone (12)."""
    case = Case(RpcId(1, 1), METHOD, LOGGED, 3, lsn=2, who="alice", why="it kills")
    first = _Shell(committed(operation(1, 1)))
    first.ledger = Ledger((case,))
    assert first.run() is not None
    (aside,) = _entries(first)
    assert aside.set_aside == SetAside(3, "alice", "it kills", 2)
    log = [each for step in first.steps if isinstance(step, Append) for each in step.entries]
    again = _Shell(committed(operation(1, 1), *log), number=5)
    again.ledger = Ledger((case,))
    assert again.run() is not None
    assert _entries(again) == []
    assert [each.closed for each in again.ledger.cases] == [True]


def test_below_the_bound_it_is_run_again() -> None:
    """Two deaths may have had other causes (invariant 12)."""
    shell = _poisoned(2)
    found = shell.run()
    assert found is not None
    assert found.replayed == 2
    assert all(not each.refusal for each in _entries(shell))
    assert shell.ledger == Ledger()
