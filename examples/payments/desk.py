"""A service's desk: it puts requests into the log, each once, and hands decisions to who waits.

A request gets a number in the service's database, durably, and is appended under that number, by a
producer of the service's name. So the log tells, whenever the service is started again, which of
its requests it has. Decisions come back by a consumer that writes them into the same database.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import sharedlog
from examples.payments.rules import ACCOUNTS, Payment, decisions_of, publishing

__all__ = ["Desk", "create"]

_MOST = 200
_RETRY_S = 0.05


def create(database: Path) -> None:
    """Make a service's database, empty."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE request (number INTEGER PRIMARY KEY, name TEXT UNIQUE, account TEXT, "
            "value BLOB, decision TEXT)"
        )


class Desk:
    """A context manager: inside it two threads work, one for each direction."""

    def __init__(self, log: sharedlog.Log, service: str, database: Path) -> None:
        """``service``: its name, under which the log knows it."""
        self._log = log
        self._service = service
        self._database = database
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._asked: queue.SimpleQueue[Payment | None] = queue.SimpleQueue()
        self._inbox = self._consumer()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._append, self._inbox.run)
        ]

    def __enter__(self) -> Self:
        """Begin."""
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._asked.put(None)
        self._inbox.close()
        for each in self._threads:
            each.join()

    def decided(self, payment: Payment) -> dict[str, Any]:
        """Return the decision about a payment, which was asked for before or is asked for now."""
        with self._lock:
            future = self._waiting.setdefault(payment.request, Future())
        self._asked.put(payment)
        return future.result()

    def _consumer(self) -> sharedlog.Consumer:
        stream = decisions_of(self._service)
        store = f"sqlite:///{self._database}"
        consumer = sharedlog.Consumer(self._log, f"desk-{self._service}", [stream], store)

        @consumer.on(stream, json.loads)
        def note(said: dict[str, Any], effects: sharedlog.Effects) -> None:
            effects.connection.execute(
                "UPDATE request SET decision = ? WHERE name = ?",
                (json.dumps(said), said["request"]),
            )
            # It is decided, whether or not this transaction commits.
            self._tell(said)

        return consumer

    def _tell(self, said: dict[str, Any]) -> None:
        with self._lock:
            future = self._waiting.pop(said["request"], None)
        if future is not None:
            future.set_result(said)

    def _append(self) -> None:
        """Number what is asked for, and append it in that order; again, if it was not answered."""
        producer = self._log.producer(f"service-{self._service}")
        connection = sqlite3.connect(self._database, isolation_level=None, timeout=30)
        last: int | None = None
        with contextlib.closing(connection):
            while True:
                try:
                    if last is None:
                        last = producer.last()
                    last = self._append_behind(connection, producer, last)
                except sharedlog.LogError:
                    # The log is away, or had more than this process knew. It is asked.
                    last = None
                    threading.Event().wait(_RETRY_S)
                    continue
                wanted = [self._asked.get()]
                while len(wanted) < _MOST and not self._asked.empty():
                    wanted.append(self._asked.get())
                if None in wanted:
                    return
                self._number(connection, [each for each in wanted if each is not None])

    def _number(self, connection: sqlite3.Connection, wanted: list[Payment]) -> None:
        found = []
        connection.execute("BEGIN IMMEDIATE")
        for payment in wanted:
            said = publishing("pay", payment._asdict(), service=self._service)
            connection.execute(
                "INSERT INTO request (name, account, value) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (payment.request, payment.source, said),
            )
            found += connection.execute(
                "SELECT decision FROM request WHERE name = ? AND decision IS NOT NULL",
                (payment.request,),
            ).fetchall()
        connection.execute("COMMIT")
        for (decision,) in found:
            self._tell(json.loads(decision))

    def _append_behind(
        self, connection: sqlite3.Connection, producer: sharedlog.Producer, last: int
    ) -> int:
        """Append what is behind a number; return the new last one."""
        rows = connection.execute(
            "SELECT number, account, value FROM request WHERE number > ? ORDER BY number LIMIT ?",
            (last, _MOST),
        ).fetchall()
        if not rows:
            return last
        newest: int = rows[-1][0]
        with producer.transaction(seq=newest, follows=last) as transaction:
            for _, account, value in rows:
                transaction.publish(ACCOUNTS, value, key=account)
        return newest
