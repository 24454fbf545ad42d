"""Survival: a leader that steps down and lives on has died of nothing (DESIGN §7, invariant 12)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chaos.sim.group.log import LogStore, Moment
from curp._core.poison import RETRIED, Case, Ledger
from curp._core.poison_notes import NoteDown
from curp._core.setting_aside import CountDeaths
from curp._replica.poisoning import count_deaths, note_down, read_ledger, read_left
from curp._replica.survival import Survival
from curp.log._commits import GroupLog
from curp.log._errors import LogUnavailable
from examples.bank.v1 import bank_pb2
from rifl.core._shared.identity import RpcId
from rifl.testing import FakeClock
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.ledger import Bank
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

_DEADLINE_S = 60.0
_CASE = Case(RpcId(1, 2), "/a/B", RETRIED)


class _Cut:
    """A fault that lasts while it is set."""

    def __init__(self) -> None:
        self.off = False

    def __call__(self, operation: str, moment: Moment) -> None:
        if self.off:
            raise LogUnavailable(f"{moment.value} {operation}")


class _Group:
    """A log two processes of which lead in turn, and one that may be cut off from it."""

    def __init__(self) -> None:
        self.cut = _Cut()
        log = LogStore(FakeClock())
        self.first, self.second = log.engine(self.cut), log.engine()
        self.running = 0
        self.survival = Survival(self.first, lambda: self.running)

    def leads(self, engine: GroupLog, name: str = "r1/a") -> int:
        """Take the next number, in which a call is noted."""
        number = engine.take_leadership(name, "127.0.0.1:1", term_s=1.0)
        note_down(engine, NoteDown((_CASE,), (), number))
        return number

    def counts(self, now_us: int = 7) -> int:
        """Have the second one take over, and count whom it takes for dead; the deaths."""
        leadership = self.second.leadership()
        assert leadership is not None
        self.second.end_leadership(leadership.configuration)
        number = self.second.take_leadership("r2/b", "127.0.0.1:2", term_s=1.0)
        left = read_left(self.second)
        step = CountDeaths(left.notes, left.configuration)
        ledger = count_deaths(self.second, number, step, now_us)
        assert read_left(self.second).notes == ()
        self.second.end_leadership(number)
        return sum(case.deaths for case in ledger.cases)

    def deaths(self) -> int:
        """How many stand."""
        return sum(case.deaths for case in read_ledger(self.second).cases)


def test_what_is_said_before_it_is_counted_and_after_that_is_no_death() -> None:
    """The engine has it either way, whoever is faster (invariant 12)."""
    group = _Group()
    number = group.leads(group.first)
    group.survival.stepped_down(number, number)
    group.survival.tell()
    assert group.counts() == 0
    group.survival.tell()
    number = group.leads(group.first)
    assert group.counts() == 1
    group.survival.stepped_down(number, number)
    group.survival.tell()
    assert group.deaths() == 0


def test_it_is_said_until_the_engine_has_it() -> None:
    """Cut off it cannot say so; that another one counted by then changes nothing (12)."""
    group = _Group()
    number = group.leads(group.first)
    group.cut.off = True
    group.survival.stepped_down(number, number)
    with pytest.raises(LogUnavailable):
        group.survival.tell()
    assert group.counts() == 1
    with pytest.raises(LogUnavailable):
        group.survival.tell()
    group.cut.off = False
    group.survival.tell()
    assert group.deaths() == 0
    # There is nothing to say any more.
    group.cut.off = True
    group.survival.tell()


def test_a_note_that_arrives_late_is_no_death_either() -> None:
    """A write that was lost may still be under way while the number is current (invariant 12)."""
    group = _Group()
    number = group.first.take_leadership("r1/a", "127.0.0.1:1", term_s=1.0)
    group.survival.stepped_down(number, number)
    group.survival.tell()
    note_down(group.first, NoteDown((_CASE,), (), number))
    assert group.counts() == 1
    group.survival.tell()
    assert group.deaths() == 0


def test_while_a_handler_runs_nobody_lives_on() -> None:
    """It may yet kill: whoever dies before it could speak has died (invariant 12)."""
    group = _Group()
    number = group.leads(group.first)
    group.survival.stepped_down(number, number)
    group.running = 1
    group.survival.tell()
    assert group.counts() == 1
    group.survival.tell()
    assert group.deaths() == 1
    group.running = 0
    group.survival.tell()
    assert group.deaths() == 0


def test_others_deaths_stay() -> None:
    """A process speaks for its own numbers, all of a leadership, and no others (12)."""
    group = _Group()
    assert group.leads(group.first, "r3/c") == 1
    assert group.counts() == 1
    assert group.first.take_leadership("r1/a", "127.0.0.1:1", term_s=1.0) == 3
    # Another list of witnesses: the same leadership goes on under the next number.
    assert group.first.next_configuration(3, {}, term_s=1.0) == 4
    note_down(group.first, NoteDown((_CASE,), (), 4))
    assert group.counts() == 2
    group.survival.stepped_down(3, 4)
    group.survival.tell()
    (case,) = read_ledger(group.second).cases
    assert [death.configuration for death in case.died] == [1]
    assert read_ledger(group.second) == Ledger((case,), (4,))


def test_a_leader_cut_off_in_a_noted_call_is_taken_for_dead_until_it_is_back() -> None:
    """The next leader cannot know; the call's deaths are none when its handler ended (12)."""
    log = LogStore()
    cut = _Cut()
    look = log.engine()
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Bank):
        def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
            if request.reference == "slow" and not go_on.is_set():
                begun.set()
                assert go_on.wait(_DEADLINE_S)
            return super().Deposit(request, context)

    with replica(log.engine(cut), factory=Slow) as first:
        first.until_leading()
        client = ByHand(first.address)
        client.deposit("opening", "alice", 1)
        asking = threading.Thread(
            target=client.deposit, args=("slow", "bob", 2), kwargs={"attempt": 2}
        )
        asking.start()
        assert begun.wait(_DEADLINE_S)
        cut.off = True
        log.end_lease()
        with replica(log.engine(), "r2") as second:
            second.until_leading()
            (case,) = read_ledger(look).cases
            assert (case.rpc_id.seq, case.deaths) == (2, 1)
            cut.off = False
            go_on.set()
            until(lambda: not read_ledger(look).cases[0].deaths, "it lives", _DEADLINE_S)
            asking.join()
            # What it did there was taken back with the rest of its state.
            client.move(second.address)
            assert client.deposit("slow", "bob", 2, attempt=3).ok
            assert second.bank.paid == {"opening": 1, "slow": 1}
