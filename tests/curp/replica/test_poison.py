"""Calls whose handlers kill the process, in groups of real processes (DESIGN §7, invariant 12)."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
from curp._cli.command import main
from curp._core.poison import HELD, LOGGED, Case, Ledger
from curp._replica.poisoning import update_ledger
from curp.log._opening import open_engine
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.core._shared.identity import RpcId
from tests.curp.engines import over
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.operated import DEADLINE_S, Operated, operated
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_DEADLY = ("tests.curp.replica.deadly_bank:DeadlyBank",)
_DEPOSIT = "/bank.v1.Bank/Deposit"
_MOST_DEATHS = 12


class _Supervisor:
    """Starts each replica that died again, and counts the deaths."""

    def __init__(self, group: Operated) -> None:
        self._group = group
        self.deaths = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            died = self._group.died()
            while died and not self._over.is_set():
                name = died.pop()
                self.deaths += 1
                try:
                    self._group.start(name)
                except AssertionError:
                    # Another replay killed it before it listened.
                    died += self._group.died()
                    if name not in died:
                        raise


@contextlib.contextmanager
def _deadly(directory: Path, log: Any, witnesses: int) -> Iterator[tuple[Operated, _Supervisor]]:
    with operated(directory, log.url, replicas=2, witnesses=witnesses) as group:
        group.serves = dict.fromkeys(group.replicas, _DEADLY)
        group.start()
        group.leader()
        if witnesses:
            group.until_listed()
        with _Supervisor(group) as supervisor:
            yield group, supervisor


def _logged(url: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["log", "dump", url]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [entry for entry in entries if "set_aside" in entry]


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
@pytest.mark.parametrize(
    "reference", ["poison", pytest.param("poison-signal", marks=pytest.mark.long)]
)
def test_a_call_that_kills_every_leader_is_set_aside(
    tmp_path: Path, log: Any, capsys: pytest.CaptureFixture[str], reference: str
) -> None:
    """Nobody can have its answer: after a few deaths it is unknown for ever, others go on (12)."""
    with _deadly(tmp_path, log, witnesses=0) as (group, supervisor):
        with rifl.connect(list(group.replicas.values())) as channel:
            bank = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference=reference, account="a", cents=1)
            with pytest.raises(rifl.CallError) as told:
                bank.Deposit(request, timeout=DEADLINE_S)
            assert told.value.outcome is rifl.Outcome.UNKNOWN
            assert "set aside" in str(told.value)
            group.deposit("b", "c")
            assert group.balances("a", "b", "c") == [0, 1, 1]
        assert supervisor.deaths <= _MOST_DEATHS
        (entry,) = _logged(log.url, capsys)
        assert entry["set_aside"] == {"deaths": 3}
        assert main(["poison", "list", log.url]) == 0
        assert "deaths 3" in capsys.readouterr().out
        until(lambda: main(["status", *group.replicas.values()]) == 0, "all are back", DEADLINE_S)
        out = capsys.readouterr().out
        assert "/bank.v1.Bank/Deposit  retried  deaths 3" in out
        assert "set aside" in out
        # The next leaders know it, from the log.
        deaths = supervisor.deaths
        leader = group.leader()
        group.stop(leader, how=signal.SIGKILL)
        group.start(leader)
        group.deposit("d")
        assert supervisor.deaths == deaths


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_a_call_that_a_witness_holds_is_set_aside_by_an_operator_only(
    tmp_path: Path, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may have been answered first: the group waits, visibly, and the log has who (12)."""
    with _deadly(tmp_path, log, witnesses=1) as (group, supervisor):
        with rifl.connect(list(group.replicas.values())) as channel:
            bank = bank_pb2_grpc.BankStub(channel)
            # So that its registration is in the log, and it knows the witness.
            for reference in ("first", "second", "third"):
                bank.Deposit(_request(reference), timeout=DEADLINE_S)
            poison = bank.Deposit.future(_request("poison-1"), timeout=120.0)
            until(lambda: "an operator" in _waiting(group), "it waits", 2 * DEADLINE_S)
            waiting = _waiting(group)
            assert "/bank.v1.Bank/Deposit" in waiting
            # The last that died is back, so it was counted.
            until(lambda: len(group.statuses()) == len(group.replicas), "all are back", DEADLINE_S)
            deaths = supervisor.deaths
            assert deaths <= _MOST_DEATHS
            capsys.readouterr()
            assert main(["poison", "list", log.url]) == 0
            told = capsys.readouterr().out.splitlines()
            # Beside it only what was held with it.
            (line,) = (each for each in told if "suspected" not in each)
            call = line.split()[0]
            assert call in waiting
            assert "held  deaths 3" in line
            assert main(["poison", "show", log.url, call]) == 0
            assert "may have been answered" in capsys.readouterr().out
            assert main(["poison", "set-aside", log.url, "1/1", "--why", "x", "--yes"]) == 1
            assert told[0] == line
            assert line.endswith("the group waits for this decision")
            assert [each for each in told[1:] if "waits" in each] == []
            word = ["--who", "alice", "--why", "it kills", "--yes"]
            assert main(["poison", "set-aside", log.url, call, *word]) == 0
            error = poison.exception()
            assert isinstance(error, rifl.CallError)
            assert error.outcome is rifl.Outcome.UNKNOWN
        group.deposit("b")
        assert group.balances("poison-1", "first", "second", "third", "b") == [0, 1, 1, 1, 1]
        assert supervisor.deaths == deaths
        (entry,) = _logged(log.url, capsys)
        assert entry["set_aside"] == {"deaths": 3, "who": "alice", "why": "it kills"}
        assert main(["poison", "set-aside", log.url, call, *word]) == 1
        assert "already" in capsys.readouterr().err


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_only_a_call_that_the_group_waits_for_is_set_aside(
    log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other may have been acknowledged: its name is typed twice to give it up (12)."""
    killer, innocent, logged = (RpcId(7, seq, None) for seq in (3, 1, 2))
    suspects = [Case(innocent, _DEPOSIT, HELD), Case(killer, _DEPOSIT, HELD)]
    ledger = Ledger().died(suspects, 1)
    for at in (2, 3, 4):
        ledger = ledger.died([Case(killer, _DEPOSIT, HELD)], at)
        ledger = ledger.died([Case(logged, _DEPOSIT, LOGGED, lsn=1)], at)
    with contextlib.closing(open_engine(log.url)) as engine:
        number = engine.take_leadership("r1", "127.0.0.1:1", term_s=10.0)
        update_ledger(engine, number, lambda _: ledger.wait([killer]))
        engine.end_leadership(number)
    assert main(["poison", "list", log.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(killer), str(logged), str(innocent)]
    assert ["waits" in line for line in lines] == [True, False, False]
    for call in (innocent, logged):
        aside = ["poison", "set-aside", log.url, str(call), "--why", "x", "--yes"]
        assert main(aside) == 1
        assert main([*aside, "--accept-loss", str(killer)]) == 1
        assert f"--accept-loss {call}" in capsys.readouterr().err
        assert main([*aside, "--accept-loss", str(call)]) == 0
    assert main(["poison", "set-aside", log.url, str(killer), "--why", "x", "--yes"]) == 0


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_innocent_calls_that_were_sent_again_are_not_set_aside(tmp_path: Path, log: Any) -> None:
    """Only what ran alone when its leader died is counted: the others have their effect (12)."""
    accounts = [f"a{number}" for number in range(16)]
    with (
        _deadly(tmp_path, log, witnesses=0) as (group, supervisor),
        rifl.connect(list(group.replicas.values())) as channel,
    ):
        bank = bank_pb2_grpc.BankStub(channel)
        calls = []
        for number, account in enumerate(accounts):
            if number % 8 == 4:
                calls.append(bank.Deposit.future(_request(f"poison{number}"), timeout=120.0))
            calls.append(bank.Deposit.future(_request(account), timeout=120.0))
        told = [call.exception() for call in calls]
        assert [error is not None for error in told].count(True) == 2
        assert group.balances(*accounts) == [1] * 16
        assert supervisor.deaths <= 2 * _MOST_DEATHS


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_one_call_of_a_batch_kills_and_the_others_have_their_effect(
    tmp_path: Path, log: Any
) -> None:
    """Suspects of a batch run one at a time: one is unknown, the others happen once (12)."""
    names = ["a", "b", "poison-1", "c", "d"]
    with (
        _deadly(tmp_path, log, witnesses=0) as (group, supervisor),
        rifl.connect(list(group.replicas.values())) as channel,
    ):
        items = [rifl.BatchItem(_request(name).SerializeToString()) for name in names]
        results = channel.batch(_DEPOSIT, items, timeout=120)
        assert [result.ok for result in results] == [name != "poison-1" for name in names]
        assert results[2].outcome is rifl.Outcome.UNKNOWN
        assert group.balances(*names) == [1, 1, 0, 1, 1]
        assert supervisor.deaths <= _MOST_DEATHS


@pytest.mark.long
@pytest.mark.parametrize("log", over(), indirect=True)
def test_a_read_that_kills_is_refused_after_a_few_deaths(tmp_path: Path, log: Any) -> None:
    """It is in no log: who asks again is told unknown, and nobody else waits (12)."""
    with (
        _deadly(tmp_path, log, witnesses=0) as (group, supervisor),
        rifl.connect(list(group.replicas.values())) as channel,
    ):
        bank = bank_pb2_grpc.BankStub(channel)
        with pytest.raises(rifl.CallError) as told:
            bank.Balance(bank_pb2.BalanceRequest(account="poison"), timeout=120)
        assert told.value.outcome is rifl.Outcome.UNKNOWN
        group.deposit("a")
        assert group.balances("a") == [1]
        assert supervisor.deaths <= _MOST_DEATHS


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_an_entry_whose_replay_kills_is_left_out_when_an_operator_says_so(
    tmp_path: Path, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was answered: standbys wait in front of it, and a person gives its effect up (12)."""
    with _deadly(tmp_path, log, witnesses=0) as (group, supervisor):
        leader = group.leader()
        standby = next(name for name in group.replicas if name != leader)
        group.deposit("before")
        client = ByHand(group.replicas[leader])
        assert client.deposit("replay", "a", 1).ok
        assert client.deposit("after", "a", 2).ok
        until(
            lambda: "died replaying" in group.statuses().get(standby, {}).get("waitingFor", ""),
            "the standby waits",
            DEADLINE_S,
        )
        assert supervisor.deaths <= _MOST_DEATHS
        deaths = supervisor.deaths
        # The leader has its effect, and goes on.
        group.deposit("b")
        capsys.readouterr()
        assert main(["poison", "list", log.url]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert "logged  deaths 3" in line
        call = line.split()[0]
        assert main(["poison", "show", log.url, call]) == 0
        assert "logged at LSN" in capsys.readouterr().out
        word = [
            "poison",
            "set-aside",
            log.url,
            call,
            "--who",
            "alice",
            "--why",
            "it kills",
            "--yes",
        ]
        assert main(word) == 1
        assert "a replica leads" in capsys.readouterr().err
        group.stop(leader, how=signal.SIGKILL)
        group.start(leader)
        until(lambda: main(word) == 0, "nobody leads", DEADLINE_S)
        group.leader()
        # Later answers stand, though they were given on top of what is left out.
        assert group.balances("before", "a", "b") == [1, 1, 1]
        assert supervisor.deaths == deaths
        client.move(group.replicas[group.leader()])
        again = client.deposit("replay", "a", 1, attempt=2)
        assert again.reason == "OUTCOME_UNKNOWN"
        assert client.deposit("after", "a", 2, attempt=2).outcome == "replayed"
        (entry,) = _logged(log.url, capsys)
        assert entry["set_aside"]["who"] == "alice"  # type: ignore[index]
        # And for whoever comes later.
        group.stop(standby, how=signal.SIGKILL)
        group.start(standby)
        until(lambda: len(group.statuses()) == 2, "it is back", DEADLINE_S)
        group.stop(group.leader())
        assert group.balances("a") == [1]
        assert supervisor.deaths == deaths


def _request(reference: str) -> bank_pb2.DepositRequest:
    return bank_pb2.DepositRequest(reference=reference, account=reference, cents=1)


def _waiting(group: Operated) -> str:
    return " ".join(each.get("waitingFor", "") for each in group.statuses().values())
