"""A group of ``curp serve`` processes at addresses they keep, operated as a person would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

import rifl
from curp._cli.operator_client import OperatorClient
from curp.log import create_log
from curp.log._errors import LogExists
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.suspended import stands, suspend
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

__all__ = ["DEADLINE_S", "Operated", "operated"]

DEADLINE_S = 60.0


class Operated:
    """Replicas and witnesses by name: ``r1``, ``r2``, ..., ``w1``, ...; none runs at first.

    Its log is created, where there is none.
    """

    def __init__(
        self, directory: Path, url: str, *, replicas: int, witnesses: int, more: tuple[str, ...]
    ) -> None:
        self._directory = directory
        self._url = url
        # One group may be operated twice.
        with contextlib.suppress(LogExists):
            create_log(url)
        self._more = more
        self.replicas = {f"r{at}": _free() for at in range(1, replicas + 1)}
        self.witnesses = {f"w{at}": _free() for at in range(1, witnesses + 1)}
        # What a process is given beside what all are, by its name.
        self.own: dict[str, tuple[str, ...]] = {}
        # What a replica serves from its next start on, and the arguments that only it gets.
        self.serves: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, Process] = {}

    def start(self, *names: str) -> None:
        """Start processes, all where none is named; wait until each listens."""
        names = names or (*self.witnesses, *self.replicas)
        for name in names:
            self._running[name] = Process(
                "curp", *self._arguments(name), log=self._directory / f"{name}.err"
            )
        for name in names:
            self._running[name].line(DEADLINE_S)

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> list[int]:
        """Signal processes, all that run where none is named, all at once; their exit codes."""
        stopped = [self._running.pop(name) for name in names or tuple(self._running)]
        for process in stopped:
            # It may have ended by itself.
            process.send_signal(how)
        codes = [process.wait() for process in stopped]
        for process in stopped:
            process.close()
        return codes

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that goes on, such as SIGSTOP and SIGCONT."""
        pid = self._running[name].pid
        os.kill(pid, number)
        if number is signal.SIGSTOP:
            stands(pid)

    def suspend(self, name: str) -> None:
        """SIGSTOP, where it holds up nobody."""
        file = self._url.removeprefix("sqlite:///").partition("?")[0]
        suspend(self._running[name].pid, Path(file) if "sqlite" in self._url else None)

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a replica that was given ``--log-json`` logged, of one kind."""
        lines = (self._directory / f"{name}.err").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in found if each["event"] == event]

    def until_event(self, name: str, event: str) -> None:
        """Wait until a replica has logged an event of that kind."""
        until(lambda: self.events(name, event), f"{name} logs {event}", DEADLINE_S)

    def died(self) -> list[str]:
        """Which processes ended by themselves, since this was asked before."""
        found = [name for name, process in list(self._running.items()) if not process.alive]
        for name in found:
            if (process := self._running.pop(name, None)) is not None:
                process.close()
        return found

    def statuses(self) -> dict[str, dict[str, Any]]:
        """What each replica that runs says of itself, by its name."""
        asked: dict[str | None, list[str]] = {}
        for name in self._running:
            if name in self.replicas:
                asked.setdefault(self._token(name), []).append(self.replicas[name])
        found = [
            each
            for token, addresses in asked.items()
            for each in OperatorClient(addresses, timeout_s=3.0, group_token=token).statuses()
        ]
        return {status.replica: MessageToDict(status) for _, status in found if status is not None}

    def status(self, name: str) -> dict[str, Any]:
        """What one says of itself, once it answers: on a busy machine it may be late."""
        found: dict[str, Any] = until(
            lambda: self.statuses().get(name), f"{name} answers: {self.errors()}", DEADLINE_S
        )
        return found

    def _token(self, name: str) -> str | None:
        given = dict(pairwise(self.own.get(name, ())))
        file = given.get("--group-token-file")
        return None if file is None else Path(file).read_text()

    def leader(self) -> str:
        """Wait for one that leads; its name."""

        def leads() -> str:
            found = self.statuses().items()
            return next((name for name, status in found if status["role"] == "leader"), "")

        name: str = until(leads, f"one leads: {self.errors()}", DEADLINE_S)
        return name

    def until_listed(self) -> None:
        """Wait until the leader serves with every witness that there is."""
        wanted = sorted(self.witnesses.values())

        def listed() -> bool:
            return any(
                sorted(status["configuration"].get("witnesses", [])) == wanted
                for status in self.statuses().values()
                if status["role"] == "leader"
            )

        until(listed, f"all witnesses are listed: {self.errors()}", DEADLINE_S)

    def errors(self) -> str:
        """The ends of what the replicas said."""
        return "\n".join(f"{name}: {self._running[name].errors()}" for name in self._running)

    def deposit(self, *references: str) -> None:
        """Pay one cent for each reference into an account of its own."""
        with rifl.connect(list(self.replicas.values())) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            for name in references:
                request = bank_pb2.DepositRequest(reference=name, account=name, cents=1)
                stub.Deposit(request, timeout=DEADLINE_S)

    def balances(self, *accounts: str) -> list[int]:
        """What accounts hold."""
        with rifl.connect(list(self.replicas.values())) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            return [
                stub.Balance(
                    bank_pb2.BalanceRequest(account=account), timeout=DEADLINE_S
                ).balance_cents
                for account in accounts
            ]

    def _arguments(self, name: str) -> tuple[str, ...]:
        if name in self.witnesses:
            return ("witness", "--listen", self.witnesses[name], *self.own.get(name, ()))
        others = (part for address in self.replicas.values() for part in ("--replica", address))
        listed = (part for address in self.witnesses.values() for part in ("--witness", address))
        return (
            "serve",
            *self.serves.get(name, ("examples.replicated_bank.bank:MemoryBank",)),
            *("--engine", self._url, "--name", name, "--listen", self.replicas[name]),
            *others,
            *listed,
            *("--conflict-key", "/bank.v1.Bank/Deposit=account"),
            *("--conflict-key", "/bank.v1.Bank/Balance=account"),
            *("--read-only", "/bank.v1.Bank/Balance"),
            *self._more,
            *self.own.get(name, ()),
        )


@contextlib.contextmanager
def operated(
    directory: Path, url: str, *more: str, replicas: int = 2, witnesses: int = 1
) -> Iterator[Operated]:
    """Make a group whose processes are gone afterwards; ``more``: for ``curp serve``."""
    group = Operated(directory, url, replicas=replicas, witnesses=witnesses, more=more)
    try:
        yield group
    finally:
        group.stop(how=signal.SIGKILL)


def _free() -> str:
    return f"127.0.0.1:{free_port()}"
