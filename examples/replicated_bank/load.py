"""Callers of the bank, and a record of what they were told, for ``chaos.check``."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import grpc

import rifl
from chaos.check import History, Violation, check
from curp.client import statistics
from examples.bank.v1 import bank_pb2, bank_pb2_grpc

__all__ = ["Load", "LoadReport"]

_CALL_TIMEOUT_S = 30.0
_READ_SHARE = 0.1


class LoadReport(NamedTuple):
    """What came of it. ``lost``: acknowledged, and on no statement.

    ``fast_path_share``: of the payments whose answer became final by any way.
    """

    calls: int
    effects: int
    duplicates: int
    lost: int
    unknown: int
    fast_path_share: float
    longest_pause_ms: float
    violations: list[Violation]


class Load:
    """So many callers at once, over one channel, until ``finish``.

    As a context manager: leaving it ends the callers.
    """

    def __init__(
        self, targets: Sequence[str], *, callers: int = 8, accounts: int = 64, seed: int = 1
    ) -> None:
        self._channel = rifl.connect(list(targets), follow_leaders=True)
        self._bank = bank_pb2_grpc.BankStub(self._channel)
        self._accounts = [f"account-{number}" for number in range(accounts)]
        self._history = History()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._next = 0
        self._unknown = 0
        self._last_answer = 0.0
        self._longest_pause_s = 0.0
        self._failure: BaseException | None = None
        self.answered = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + each),))  # noqa: S311 - repeatable
            for each in range(callers)
        ]

    def __enter__(self) -> Self:
        """Start calling."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        if kind is not None:
            # No thread waits for the calls in flight.
            self._channel.close()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def await_answers(self, more: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more calls were answered; raises ``TimeoutError``."""
        wanted = self.answered + more
        until = time.monotonic() + timeout_s
        while self.answered < wanted:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() >= until:
                raise TimeoutError(f"{wanted - self.answered} answers short after {timeout_s:g} s")
            time.sleep(0.005)

    def finish(self) -> LoadReport:
        """End the callers, read all statements, and check what the callers were told."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        effects = self._read_statements()
        deposits = [each for each in self._history.events if _is(each, "start", op="add")]
        told = {
            each["call"]
            for each in self._history.events
            if _is(each, "end") and each["outcome"] in ("executed", "replayed")
        }
        paths = statistics(self._channel)
        final = 0 if paths is None else sum(paths)
        return LoadReport(
            calls=len(deposits),
            effects=sum(effects.values()),
            duplicates=sum(count - 1 for count in effects.values() if count > 1),
            lost=sum(each["call"] in told and each["call"] not in effects for each in deposits),
            unknown=self._unknown,
            fast_path_share=0.0 if paths is None or not final else paths.fast / final,
            longest_pause_ms=self._longest_pause_s * 1000,
            violations=check(self._history),
        )

    def write(self, path: Any) -> None:
        """Write the history, for ``python -m chaos.check``."""
        self._history.write(path)

    def _run(self, dice: random.Random) -> None:
        try:
            while not self._ending.is_set():
                self._call(dice)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error

    def _call(self, dice: random.Random) -> None:
        account, cents = dice.choice(self._accounts), dice.randint(1, 100)
        reads = dice.random() < _READ_SHARE
        with self._lock:
            self._next += 1
            call = self._next
            op = "read" if reads else "add"
            self._history.start(time.monotonic(), call, op, account, cents, "once")
        value: list[int] | None = None
        outcome, code, reason = "unknown", "OK", ""
        try:
            if reads:
                balance = self._bank.Balance(
                    bank_pb2.BalanceRequest(account=account), timeout=_CALL_TIMEOUT_S
                )
                # So that an order has to be found that explains it, too.
                value = [balance.entry, balance.balance_cents]
                outcome = "executed"
            else:
                request = bank_pb2.DepositRequest(reference=str(call), account=account, cents=cents)
                receipt, answer = self._bank.Deposit.with_call(request, timeout=_CALL_TIMEOUT_S)
                value = [receipt.entry, receipt.balance_cents]
                outcome = dict(answer.trailing_metadata() or ()).get("rifl-outcome", "executed")
        except grpc.RpcError as error:
            outcome = getattr(error, "outcome", rifl.Outcome.UNKNOWN).value
            code, reason = error.code().name, getattr(error, "reason", "")
        now = time.monotonic()
        with self._lock:
            self._history.end(now, call, outcome, code, value, reason)
            self._unknown += outcome == "unknown"
            if code == "OK":
                if self._last_answer:
                    self._longest_pause_s = max(self._longest_pause_s, now - self._last_answer)
                self._last_answer = now
                self.answered += 1

    def _read_statements(self) -> dict[int, int]:
        """Put what is on the accounts into the history; the effects of each call."""
        effects: dict[int, int] = {}
        at: dict[int, list[dict[str, Any]]] = {}
        finals = []
        for account in self._accounts:
            version = 0
            while lines := self._bank.Statement(
                bank_pb2.StatementRequest(account=account, after=version), timeout=_CALL_TIMEOUT_S
            ).references:
                for reference in lines:
                    version += 1
                    call = int(reference)
                    effects[call] = effects.get(call, 0) + 1
                    event = {"event": "effect", "at": 0.0, "call": call, "account": account}
                    at.setdefault(call, []).append({**event, "version": version})
            cents = self._bank.Balance(
                bank_pb2.BalanceRequest(account=account), timeout=_CALL_TIMEOUT_S
            ).balance_cents
            finals.append((account, version, cents))
        # The time of an effect is not known; it was not before its call.
        events = []
        for event in self._history.events:
            events.append(event)
            if event["event"] == "start":
                events += at.pop(cast(int, event["call"]), [])
        events += [event for stray in at.values() for event in stray]
        self._history = History(events)
        for account, version, cents in finals:
            self._history.final(account, version, cents)
        return effects


def _is(event: dict[str, Any], kind: str, **fields: Any) -> bool:
    return event["event"] == kind and all(event[name] == value for name, value in fields.items())
