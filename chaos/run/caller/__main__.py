"""A client: ``python -m chaos.run.caller JSON``; what it is told goes to a file, event by event.

Calls until its standard input closes. The events are ``chaos.check.history``'s, each
written when it happens and stamped by the machine's monotonic clock, so that the files
of several clients make one history, and a client that is killed leaves what it was told.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl._wire.labels import read_refusal

_RESOLVE_S = 5.0
_AUDIT_S = 60.0
# Call numbers: so many for each life of each client; those under common keys above all.
_OF_CLIENT, _OF_LIFE, _KEYED = 1_000_000_000, 10_000_000, 900_000_000_000
# A client that came back asks again for the last so many keys.
_KEYS_AGAIN = 5
_KEYED_ACCOUNTS = 3
# Of the session that keyed calls share.
_SECRET = "chaos, and no secret at all"  # noqa: S105 - of a test
_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 300),
)
_RETRY = rifl.RetryPolicy(initial_backoff_s=0.02, max_backoff_s=0.2, attempt_timeout_s=1.0)
_GRPC_RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "bank.v1.Bank"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.02s",
                "maxBackoff": "0.2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Caller:
    """All callers of one process, on one channel, and one more on a named session's."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._file = os.open(given["history"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        self._number = given["client"] * _OF_CLIENT + given["life"] * _OF_LIFE
        self._ending = threading.Event()
        self._failed = threading.Event()
        self._accounts = [f"account-{each}" for each in range(given["accounts"])]
        self._channel = self._connect(None)
        self._session = self._connect("chaos") if given["keyed"] else None

    def run(self) -> int:
        """Call from all threads until standard input closes; the exit code."""
        dice = random.Random(f"{self._given['seed']} {self._number}")  # noqa: S311 - repeatable
        work = [
            threading.Thread(target=self._guarded, args=(self._call_at_will, dice.random()))
            for _ in range(self._given["callers"])
        ]
        if self._session is not None:
            work.append(threading.Thread(target=self._guarded, args=(self._call_by_key, 0.0)))
        if self._given["forked"]:
            work.append(threading.Thread(target=self._guarded, args=(self._call_forked, 0.5)))
        for thread in work:
            thread.start()
        print("calling", flush=True)
        os.read(0, 1)
        self._ending.set()
        for thread in work:
            thread.join()
        return 1 if self._failed.is_set() else 0

    def _guarded(self, work: Any, seed: float) -> None:
        try:
            work(random.Random(seed))  # noqa: S311 - repeatable
        except BaseException:
            self._failed.set()
            raise

    def _call_at_will(self, dice: random.Random) -> None:
        bank = bank_pb2_grpc.BankStub(self._channel)
        while not self._ending.wait(dice.uniform(0, 2 * self._given["pause_s"])):
            call = self._next_number()
            account, cents = dice.choice(self._accounts), dice.randint(1, 100)
            if dice.random() < self._given["reads"]:
                self._read(bank, call, account)
                continue
            error = self._deposit(bank, call, account, cents)
            if error is not None and getattr(error, "outcome", None) is rifl.Outcome.UNKNOWN:
                self._resolve(call, error)

    def _call_by_key(self, dice: random.Random) -> None:
        """Make the calls that every client makes, each under its key, in order."""
        bank = bank_pb2_grpc.BankStub(self._session)
        number = max(0, self._last_key() - _KEYS_AGAIN)
        while not self._ending.wait(dice.uniform(0, 2 * self._given["pause_s"])):
            account = f"shared-{number % _KEYED_ACCOUNTS}"
            with rifl.key(f"key-{number}"):
                error = self._deposit(bank, _KEYED + number, account, 1 + number % 7)
            # Until it is known, or known to be lost: the same key again is the same call.
            number += error is None or getattr(error, "reason", "") == "OUTCOME_UNKNOWN"

    def _call_forked(self, dice: random.Random) -> None:
        """Make payments of their own keys by a forked worker, and the same by its server."""
        server = bank_pb2_grpc.BankStub(self._channel)
        forked = [
            bank_pb2_grpc.BankStub(grpc.insecure_channel(address, _RECONNECT))
            for address in self._given["forked"]
        ]
        while not self._ending.wait(dice.uniform(0, 2 * self._given["pause_s"])):
            call = self._next_number()
            account, cents = dice.choice(self._accounts), dice.randint(1, 100)
            ways = [(dice.choice(forked), True), (server, False)]
            dice.shuffle(ways)
            for bank, by_worker in ways:
                self._deposit(bank, call, account, cents, key=f"once-{call}", by_worker=by_worker)

    def _next_number(self) -> int:
        with self._lock:
            self._number += 1
            return int(self._number)

    def _last_key(self) -> int:
        """Return the last key that an earlier life of this client asked for."""
        last = 0
        for line in Path(self._given["history"]).read_text().splitlines():
            with contextlib.suppress(ValueError):
                last = max(last, json.loads(line).get("call", 0) - _KEYED)
        return last

    def _deposit(
        self,
        bank: Any,
        call: int,
        account: str,
        cents: int,
        *,
        key: str = "",
        by_worker: bool = False,
    ) -> Any:
        """Make a payment; returns the error if there was one. ``key``: in the plain header."""
        request = bank_pb2.DepositRequest(reference=str(call), account=account, cents=cents)
        op = "touch" if self._given["method"] == "idempotent" else "add"
        self._note("start", call, op=op, account=account, amount=cents)
        try:
            receipt, answer = bank.Deposit.with_call(
                request,
                timeout=self._given["timeout_s"],
                metadata=(("idempotency-key", key),) if key else None,
            )
        except grpc.RpcError as error:
            self._note_error(call, error, by_worker=by_worker)
            return error
        trailing = dict(answer.trailing_metadata() or ())
        outcome = str(trailing.get("rifl-outcome", "executed"))
        value = [receipt.entry, receipt.balance_cents]
        self._note_end(call, outcome, "OK", value, by_worker=by_worker)
        return None

    def _read(self, bank: Any, call: int, account: str) -> None:
        self._note("start", call, op="read", account=account, amount=0)
        request = bank_pb2.BalanceRequest(account=account)
        try:
            reply = bank.Balance(request, timeout=self._given["timeout_s"])
        except grpc.RpcError as error:
            self._note_error(call, error)
        else:
            self._note_end(call, "executed", "OK", [None, reply.balance_cents])

    def _resolve(self, call: int, error: Any) -> None:
        """Ask what became of a call; who cannot be told learns nothing more."""
        if error.rpc_id is None:
            return
        try:
            found = self._channel.session.resolve(error.rpc_id, timeout=_RESOLVE_S)
        except grpc.RpcError:
            return
        value = None if found.reply is None else [found.reply.entry, found.reply.balance_cents]
        if found.outcome is not rifl.Outcome.UNKNOWN:
            self._note("resolved", call, outcome=found.outcome.value, value=value)

    def _note_error(self, call: int, error: Any, *, by_worker: bool = False) -> None:
        outcome = getattr(error, "outcome", rifl.Outcome.UNKNOWN).value
        reason = getattr(error, "reason", "") or ""
        if by_worker and (refusal := read_refusal(error.trailing_metadata() or ())) is not None:
            reason = refusal[0]
        self._note_end(call, outcome, error.code().name, None, reason, by_worker=by_worker)

    def _note_end(
        self,
        call: int,
        outcome: str,
        code: str,
        value: Any,
        reason: str = "",
        *,
        by_worker: bool = False,
    ) -> None:
        told = {"outcome": outcome, "code": code, "value": value, "reason": reason}
        if by_worker:
            told["by"] = "forked worker"
        self._note("end", call, **told)

    def _note(self, event: str, call: int, **fields: Any) -> None:
        if event == "start":
            fields["promise"] = "at-least-once" if fields["op"] == "touch" else "once"
        line = {"event": event, "at": time.monotonic(), "call": call, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _connect(self, session: str | None) -> Any:
        given = self._given
        if given["method"] == "grpc":
            options = [("grpc.service_config", json.dumps(_GRPC_RETRIES)), *_RECONNECT]
            return grpc.insecure_channel(given["targets"][0], options)
        return rifl.connect(
            given["targets"],
            options=_RECONNECT,
            retry=_RETRY,
            session=session,
            secret=_SECRET if session else None,
            hedge_after=given["hedge_after_s"] or None,
            follow_leaders=given["follow_leaders"],
        )


def audit(given: dict[str, Any]) -> int:
    """Read all statements, and write one line of ``[account, total, calls]`` for each."""
    with rifl.connect(
        given["targets"], options=_RECONNECT, retry=_RETRY, follow_leaders=True
    ) as channel:
        bank = bank_pb2_grpc.BankStub(channel)
        for account in given["accounts"]:
            calls: list[int] = []
            while lines := bank.Statement(
                bank_pb2.StatementRequest(account=account, after=len(calls)), timeout=_AUDIT_S
            ).references:
                calls += map(int, lines)
            balance = bank.Balance(bank_pb2.BalanceRequest(account=account), timeout=_AUDIT_S)
            print(json.dumps([account, balance.balance_cents, calls]), flush=True)
    return 0


if __name__ == "__main__":
    _given = json.loads(sys.argv[1])
    # Threads of a channel that was never closed must not hold the process up.
    _code = audit(_given) if _given.get("audit") else Caller(_given).run()
    sys.stdout.flush()
    os._exit(_code)
