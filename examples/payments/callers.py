"""The callers: threads that pay, naively and otherwise, and write down what they were told."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

import rifl
from examples.payments import naive, service
from examples.payments.rules import Payment

__all__ = ["Callers"]

_CALL_S = 120.0
_RETRY_S = 0.02
# How many payments of a caller are followed by a report.
_REPORT_EVERY = 50
_SCHEMA = """
CREATE TABLE asked (request TEXT, source TEXT, destination TEXT, cents INTEGER, memo TEXT);
CREATE TABLE told (request TEXT, approved INTEGER, fee INTEGER, at_ns INTEGER);
CREATE TABLE naive_told (request TEXT, approved INTEGER, fee INTEGER, at_ns INTEGER);
CREATE TABLE report (account TEXT, request TEXT, seen INTEGER);
"""


class Callers:
    """Pay all payments twice: by the services, and by the naive one."""

    def __init__(self, payments: Sequence[Payment], kills: int = 1) -> None:
        """Start no call yet. ``kills``: how many kills are waited for, as the payments go on."""
        self._payments = payments
        self.told: list[tuple[str, int, int, int]] = []
        self.naive_told: list[tuple[str, int, int, int]] = []
        self._reports: list[tuple[str, str, int]] = []
        # Each lets a part of the payments go on, however few and fast they are.
        self._kills = [threading.Event() for _ in range(kills)]
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stack = contextlib.ExitStack()
        self.errors: list[BaseException] = []

    def start(self, addresses: Sequence[str], naive_address: str, threads: int) -> None:
        """Begin, with so many threads at the services, and a few at the naive one."""
        channels = [self._stack.enter_context(rifl.connect(each)) for each in addresses]
        for number in range(threads):
            mine = self._payments[number::threads]
            self._run(self._pay, channels[number % len(channels)], mine)
        naive_channel = self._stack.enter_context(grpc.insecure_channel(naive_address))
        few = max(1, threads // 4)
        for number in range(few):
            self._run(self._pay_naively, naive_channel, self._payments[number::few])

    @property
    def waits(self) -> bool:
        """Whether some of the payments wait for a process to be killed."""
        return not all(each.is_set() for each in self._kills)

    def killed(self) -> None:
        """Let the next part go on: a process is being killed."""
        next((each for each in self._kills if not each.is_set()), threading.Event()).set()

    def join(self) -> None:
        """Wait until all have ended; raises what one of them raised."""
        for each in self._threads:
            each.join()
        self._stack.close()
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """Have them end after what they are at."""
        self._closing.set()
        for each in self._kills:
            each.set()

    def write(self, database: Path) -> None:
        """Write down what was asked for, and what they were told."""
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.executescript(_SCHEMA)
            connection.executemany("INSERT INTO asked VALUES (?, ?, ?, ?, ?)", self._payments)
            connection.executemany("INSERT INTO told VALUES (?, ?, ?, ?)", self.told)
            connection.executemany("INSERT INTO naive_told VALUES (?, ?, ?, ?)", self.naive_told)
            connection.executemany("INSERT INTO report VALUES (?, ?, ?)", self._reports)
            connection.commit()

    def _run(self, pay: Callable[..., None], *given: Any) -> None:
        def run() -> None:
            try:
                pay(*given)
            except BaseException as error:  # noqa: BLE001 - raised by the main thread
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _next(self, payments: Sequence[Payment]) -> Any:
        parts = len(self._kills) + 1
        for place, payment in enumerate(payments):
            for each in self._kills[: place * parts // len(payments)]:
                each.wait()
            if self._closing.is_set():
                return
            yield place, payment

    def _pay(self, channel: rifl.Channel, payments: Sequence[Payment]) -> None:
        pay, report = channel.unary_unary(service.PAY), channel.unary_unary(service.REPORT)
        for place, payment in self._next(payments):
            said = self._answered(pay, json.dumps(payment._asdict()).encode())
            self.told.append(_row(payment, said))
            if said["approved"] and place % _REPORT_EVERY == 0:
                found = self._answered(report, payment.source.encode())
                seen = payment.request in found["requests"]
                self._reports.append((payment.source, payment.request, int(seen)))

    def _pay_naively(self, channel: grpc.Channel, payments: Sequence[Payment]) -> None:
        pay: Any = channel.unary_unary(naive.PAY)
        for _, payment in self._next(payments):
            # Not faster than the others, so that it is killed as often while it pays.
            while len(self.naive_told) > len(self.told) + len(self._threads):
                if self._closing.wait(_RETRY_S):
                    return
            said = self._answered(pay, json.dumps(payment._asdict()).encode())
            self.naive_told.append(_row(payment, said))

    def _answered(self, call: Any, request: bytes) -> dict[str, Any]:
        """Call until it is answered. That is once at the services, and here at the naive one."""
        while True:
            try:
                found: dict[str, Any] = json.loads(call(request, timeout=_CALL_S))
            except grpc.RpcError as error:
                if self._closing.is_set() or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                self._closing.wait(_RETRY_S)
            else:
                return found


def _row(payment: Payment, said: dict[str, Any]) -> tuple[str, int, int, int]:
    return payment.request, int(said["approved"]), said["fee"], time.time_ns()
