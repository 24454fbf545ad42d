"""Handlers whose runs are not claimed, for tests of what their commits decide."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from rifl.core._serving.admission import Wait
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import serve
from rifl.core._shared.record import CompletionRecord
from tests.helpers.waiting import DEADLINE_S
from tests.stores.redis.replica import FIRST, Replica

__all__ = ["INSERT", "RAISED", "UNCLAIMED", "Handler", "Suspended", "drive", "rows"]

UNCLAIMED = MethodPolicy(kind=Kind.ATOMIC)
RAISED = CompletionRecord(code=2, details="the handler raised")
INSERT = "INSERT INTO effects VALUES ('x')"


def drive(steps, store, run):
    """Carry out the steps of a call as a shell does: what is raised is thrown in."""
    value, error = None, None
    try:
        while True:
            step = steps.send(value) if error is None else steps.throw(error)
            value, error = None, None
            try:
                if isinstance(step, Attempt):
                    value = run(step)
                elif isinstance(step, Wait):
                    woken = threading.Event()
                    if store.wait(step.attempt, woken.set):
                        assert woken.wait(DEADLINE_S)
                    value = True
                else:
                    value = step.wait()
            except Exception as raised:  # noqa: BLE001 - the rules settle the call first
                error = raised
    except StopIteration as stop:
        return stop.value


class Handler:
    """A handler with one effect; what it does before its transaction's end is a test's.

    ``way``: ``commit``, by which the record travels with the commit; ``record``, by which the
    handler commits itself.
    """

    def __init__(self, server: Any, *, way: str = "commit", reply: CompletionRecord = FIRST):
        self.server, self.way, self.reply = server, way, reply
        self.runs = 0
        self.before: Any = lambda connection: None
        self.options: dict[str, Any] = {}
        self.url = server.url()

    def serve(self, replica: Replica, arriving: Any, policy: MethodPolicy = UNCLAIMED) -> Any:
        """Serve a call there."""
        steps = serve(replica.store, arriving, policy)
        return drive(steps, replica.store, lambda attempt: self.run(replica, attempt))

    def run(self, replica: Replica, attempt: Any) -> HandlerResult:
        """Run it, as ``rifl.transaction`` and the shells do."""
        self.runs += 1
        transactions = replica.store.transactions
        try:
            with psycopg.connect(self.url) as connection:
                for name, value in self.options.items():
                    setattr(connection, name, value)
                if self.way == "commit":
                    transactions.begin(connection)
                try:
                    connection.execute(INSERT)
                    self.before(connection)
                    if self.way == "commit":
                        transactions.commit(attempt, self.reply, connection)
                    else:
                        transactions.record(attempt, self.reply, connection)
                        connection.commit()
                except BaseException:
                    transactions.rollback(connection)
                    raise
        except Exception:  # noqa: BLE001 - recorded, as a shell does
            return HandlerResult(RAISED, raised=True, undone=self.way == "commit")
        return HandlerResult(self.reply)


class Suspended:
    """A first attempt that stands still before its commit, on a replica of its own."""

    def __init__(self, replica, handler, arriving):
        self._go_on = threading.Event()
        begun = threading.Event()

        def wait(connection):
            begun.set()
            assert self._go_on.wait(DEADLINE_S)

        handler.before = wait
        self._pool = ThreadPoolExecutor(1)
        self._served = self._pool.submit(handler.serve, replica, arriving)
        assert begun.wait(DEADLINE_S)

    def go_on(self):
        """Let it go on; its answer."""
        self._go_on.set()
        try:
            return self._served.result(DEADLINE_S)
        finally:
            self._pool.shutdown()


def rows(replica):
    """What the store knows of calls: their seqs, and whether each is recorded."""
    return replica.store.leases._rows("SELECT seq, record IS NOT NULL FROM @.calls ORDER BY seq")
