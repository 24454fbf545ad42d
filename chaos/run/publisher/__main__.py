"""Publishers: ``python -m chaos.run.publisher JSON``; the events are ``chaos.check.log_history``'s.

Some threads publish messages, one transactions of any size, one those of a name, which it goes on
with after each restart. Until standard input closes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import sharedlog
from chaos.run.notes import Notes

# Numbers of appends: so many for each life of each publisher; those of names above all.
_OF_PUBLISHER, _OF_LIFE, _NAMED = 1_000_000_000, 10_000_000, 900_000_000_000
_SETTLE_S, _AGAIN_S = 5.0, 0.1
# What is published together, and of how many bytes where it is more than one append takes.
_COUNTS, _LARGE, _LARGE_BYTES, _SMALL_BYTES = (1, 2, 3, 5), 24, 50_000, 40
_OF_LARGE, _OF_LEFT = 0.06, 0.15
_Message = tuple[str, str, str]


class _Left(Exception):
    pass


class Publisher:
    """All threads of one process, on one log."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._notes = Notes(given["history"])
        self._who = f"publisher-{given['client']}"
        self._life = f"{given['client']}.{given['life']}"
        first = given["client"] * _OF_PUBLISHER + given["life"] * _OF_LIFE
        self._numbers = itertools.count(first + 1)
        self._ending, self._failed = threading.Event(), threading.Event()
        self._log = self._open()

    def run(self) -> int:
        """Publish until standard input closes; the exit code."""
        dice = random.Random(f"{self._given['seed']} {self._life}")  # noqa: S311 - repeatable
        threads = [
            threading.Thread(target=self._guarded, args=(work, f"{self._life}.{at}", dice.random()))
            for at, work in enumerate(
                [self._publish] * self._given["callers"] + [self._transact, self._go_on]
            )
        ]
        for thread in threads:
            thread.start()
        print("publishing", flush=True)
        os.read(0, 1)
        self._ending.set()
        for thread in threads:
            thread.join()
        self._log.close()
        return 1 if self._failed.is_set() else 0

    def _guarded(self, work: Any, caller: str, seed: float) -> None:
        try:
            work(caller, random.Random(seed))  # noqa: S311 - repeatable
        except BaseException:
            self._failed.set()
            raise

    def _turns(self, dice: random.Random) -> Iterator[int]:
        for turn in itertools.count(1):
            if self._ending.wait(dice.uniform(0, 2 * self._given["pause_s"])):
                return
            yield turn

    def _publish(self, caller: str, dice: random.Random) -> None:
        """Publish message after message."""
        for turn in self._turns(dice):
            (message,) = self._messages(f"{caller}.{turn}", dice, 1)
            call = self._begin(next(self._numbers), "publish", caller, [message])
            name, stream, key = message
            try:
                place = self._log.publish(stream, _value(name), key)
            except sharedlog.AppendUnknown as error:
                self._refused(call, error)
                self._settle(call, partial(self._ask, error))
            except sharedlog.LogError as error:
                self._refused(call, error)
            else:
                self._told(call, [place])

    def _ask(self, unknown: sharedlog.AppendUnknown) -> list[sharedlog.Position]:
        return [self._log.settle(unknown)]

    def _transact(self, caller: str, dice: random.Random) -> None:
        """Publish transactions, of which some are left by an exception."""
        producer = self._log.producer()
        for turn in self._turns(dice):
            large = dice.random() < _OF_LARGE
            count = _LARGE if large else dice.choice(_COUNTS)
            messages = self._messages(f"{caller}.{turn}", dice, count)
            call = self._begin(next(self._numbers), "transaction", caller, messages)
            left = dice.random() < _OF_LEFT
            self._commit(call, producer.transaction, messages, left=left, large=large)

    def _go_on(self, caller: str, dice: random.Random) -> None:
        """Publish the transactions of a name: the same under each number, until it is there."""
        caller = self._who
        producer = self._log.producer(caller)
        seq: int | None = None
        for _ in self._turns(dice):
            if seq is None:
                with contextlib.suppress(sharedlog.LogUnavailable):
                    seq = producer.last() + 1
                continue
            same = random.Random(f"{caller} {seq}")  # noqa: S311 - repeatable
            messages = self._messages(f"{caller}.{seq}", same, same.choice(_COUNTS))
            number = _NAMED + self._given["client"] * _OF_PUBLISHER + seq
            call = self._begin(number, "transaction", caller, messages)
            at = seq

            def begin(at: int = at) -> sharedlog.Transaction:
                return producer.transaction(seq=at, follows=at - 1)

            seq += self._commit(call, begin, messages, left=False, large=False)

    def _commit(
        self,
        call: int,
        begin: Callable[[], sharedlog.Transaction],
        messages: list[_Message],
        *,
        left: bool,
        large: bool,
    ) -> bool:
        """Publish a transaction, and note what became of it; whether it is committed."""
        transaction = None
        try:
            with begin() as transaction:
                for name, stream, key in messages:
                    transaction.publish(stream, _value(name, large=large), key)
                if left:
                    raise _Left
        except _Left:
            self._end(call, "not-executed", "ROLLED_BACK")
            return False
        except sharedlog.LogError as error:
            if transaction is None or transaction.committed is False:
                self._end(call, "not-executed", type(error).__name__)
                return False
            self._end(call, "unknown", type(error).__name__)
            return self._settle(call, transaction.settle, transaction)
        self._told(call, transaction.positions)
        return True

    def _settle(
        self,
        call: int,
        ask: Callable[[], list[sharedlog.Position]],
        transaction: sharedlog.Transaction | None = None,
    ) -> bool:
        """Ask what became of it, for some time; whether it is there."""
        until = time.monotonic() + _SETTLE_S
        while time.monotonic() < until:
            try:
                places = ask()
            except sharedlog.LogError as error:
                undone = transaction is not None and transaction.committed is False
                if undone or (error.appended is False and transaction is None):
                    self._notes.note("resolved", call=call, outcome="not-executed", places=None)
                    return False
                self._ending.wait(_AGAIN_S)
            else:
                told = [list(_place(each)) for each in places]
                self._notes.note("resolved", call=call, outcome="executed", places=told)
                return True
        return False

    def _messages(self, what: str, dice: random.Random, count: int) -> list[_Message]:
        return [
            (
                f"{what}.{place}",
                dice.choice(self._given["streams"]),
                f"customer-{dice.randrange(self._given['keys'])}",
            )
            for place in range(count)
        ]

    def _begin(self, call: int, op: str, caller: str, messages: list[_Message]) -> int:
        self._notes.note("start", call=call, op=op, caller=caller, messages=messages)
        return call

    def _told(self, call: int, places: list[sharedlog.Position]) -> None:
        self._end(call, "executed", "OK", [list(_place(each)) for each in places])

    def _refused(self, call: int, error: sharedlog.LogError) -> None:
        outcome = "not-executed" if error.appended is False else "unknown"
        self._end(call, outcome, type(error).__name__)

    def _end(
        self, call: int, outcome: str, code: str, places: list[list[int]] | None = None
    ) -> None:
        told = {"outcome": outcome, "code": code, "places": places, "reason": ""}
        self._notes.note("end", call=call, **told)

    def _open(self) -> sharedlog.Log:
        patience = timedelta(seconds=self._given["timeout_s"])
        while True:
            # What it needs may be away for longer.
            with contextlib.suppress(sharedlog.LogUnavailable):
                return sharedlog.open(self._given["url"], timeout=patience)


def _value(name: str, *, large: bool = False) -> str:
    return name + " " + "." * (_LARGE_BYTES if large else _SMALL_BYTES)


def _place(position: sharedlog.Position) -> tuple[int, int, int]:
    return position.substream, position.lsn, position.ordinal


if __name__ == "__main__":
    _code = Publisher(json.loads(sys.argv[1])).run()
    sys.stdout.flush()
    os._exit(_code)
