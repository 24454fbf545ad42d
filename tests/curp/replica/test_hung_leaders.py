"""A leader that hangs, and clients with the documented settings (DESIGN §7, the client path)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
import rifl.aio
from chaos.redis_server import RedisServer
from chaos.sim.group.log import LogStore
from curp.log._commits import GroupLog
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_TIMEOUT_S = 15.0


class _Caller:
    """Calls one after the other until it is told to end, and how long each took."""

    def __init__(self, kind: str, targets: list[str]) -> None:
        self.kind = kind
        self.took_s: list[float] = []
        self.failed: BaseException | None = None
        self._targets = targets
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            if self.kind == "aio":
                asyncio.run(self._call_async())
            else:
                self._call()
        except BaseException as error:  # noqa: BLE001 - told by ``end``
            self.failed = error

    def _request(self, number: int) -> Any:
        # Each on an account of its own: the witness takes it.
        name = f"{self.kind}-{number}"
        return bank_pb2.DepositRequest(reference=name, account=name, cents=1)

    def _call(self) -> None:
        with rifl.connect(self._targets, follow_leaders=True) as channel:
            deposit: Any = bank_pb2_grpc.BankStub(channel).Deposit
            ask: Callable[..., Any] = deposit
            if self.kind == "future":
                ask = lambda *given, **more: deposit.future(*given, **more).result()  # noqa: E731
            while not self._ending.is_set():
                began = time.monotonic()
                ask(self._request(len(self.took_s)), timeout=_TIMEOUT_S)
                self.took_s.append(time.monotonic() - began)

    async def _call_async(self) -> None:
        async with rifl.aio.connect(self._targets, follow_leaders=True) as channel:
            deposit: Any = bank_pb2_grpc.BankStub(channel).Deposit
            while not self._ending.is_set():
                began = time.monotonic()
                await deposit(self._request(len(self.took_s)), timeout=_TIMEOUT_S)
                self.took_s.append(time.monotonic() - began)


class _Hanging:
    """An engine that answers while it is let."""

    def __init__(self, engine: GroupLog) -> None:
        self._engine = engine
        self.answers = threading.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not callable(found):
            return found

        def ask(*given: Any, **more: Any) -> Any:
            self.answers.wait(DEADLINE_S)
            return found(*given, **more)

        return ask


@contextlib.contextmanager
def _log(directory: Path) -> Iterator[str]:
    """Run a Redis; the URL of a log in it."""
    server = RedisServer(directory)
    try:
        yield server.url(group="bank")
    finally:
        server.stop()


def _calls_go_on(errors: Callable[[], str], callers: list[_Caller]) -> None:
    before = [len(caller.took_s) for caller in callers]

    def more() -> bool:
        assert not any(caller.failed for caller in callers)
        return all(
            len(caller.took_s) >= had + 20 for caller, had in zip(callers, before, strict=True)
        )

    until(more, f"calls go on: {errors()}", DEADLINE_S)


def test_no_client_stays_with_a_leader_whose_engine_hangs() -> None:
    """It is there, and what it took waits for the log: it is sent to the next leader (§7)."""
    log, tuning = LogStore(), {"lease_term_s": 1.0}
    engines = {name: _Hanging(log.engine()) for name in ("r1", "r2")}
    with (
        replica(engines["r1"], "r1", tuning=tuning) as first,
        replica(engines["r2"], "r2", tuning=tuning) as second,
    ):
        both = {"r1": first, "r2": second}
        until(lambda: any(each.replica.role == "leader" for each in both.values()), "one leads")
        leader = next(name for name, each in both.items() if each.replica.role == "leader")
        callers = [
            _Caller(kind, [each.address for each in both.values()])
            for kind in ("sync", "future", "aio")
        ]
        try:
            _calls_go_on(str, callers)
            engines[leader].answers.clear()
            _calls_go_on(str, callers)
        finally:
            engines[leader].answers.set()
            for caller in callers:
                caller.end()
        longest = {caller.kind: max(caller.took_s) for caller in callers}
        assert all(seconds < 5.0 for seconds in longest.values()), longest


def test_no_client_stays_with_a_leader_that_hangs(tmp_path: Path) -> None:
    """SIGSTOP: calls under way are sent to the next leader, long before their deadline (§7)."""
    # Not SQLite: stopped within a commit, a leader keeps the file's lock, and nobody can lead.
    with _log(tmp_path) as url, operated(tmp_path, url, replicas=3) as group:
        group.start()
        group.until_listed()
        targets = list(group.replicas.values())
        callers = [_Caller(kind, targets) for kind in ("sync", "future", "aio")]
        try:
            for _ in range(2):
                _calls_go_on(group.errors, callers)
                leader = group.leader()
                group.signal(leader, signal.SIGSTOP)
                _calls_go_on(group.errors, callers)
                group.signal(leader, signal.SIGCONT)
        finally:
            for caller in callers:
                caller.end()
        longest = {caller.kind: max(caller.took_s) for caller in callers}
        # A term, an attempt's time, and a busy machine.
        assert all(seconds < 5.0 for seconds in longest.values()), longest
        accounts = [f"{caller.kind}-{at}" for caller in callers for at in range(20)]
        assert group.balances(*accounts) == [1] * len(accounts)
