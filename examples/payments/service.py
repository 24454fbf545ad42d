"""A service: ``python -m examples.payments.service NAME LOG DIRECTORY``.

``Pay`` puts a payment into the log and returns what was decided. Called again, by a client that got
no answer, it returns the same. ``Report`` reads an account's statement through the log: whatever
was decided before it was called is in it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc

import rifl
import sharedlog
from examples.payments.desk import Desk
from examples.payments.executor import PATIENCE
from examples.payments.rules import ACCOUNTS, Payment, publishing

__all__ = ["PAY", "REPORT", "main"]

_SERVICE = "examples.payments.Payments"
PAY, REPORT = f"/{_SERVICE}/Pay", f"/{_SERVICE}/Report"
_THREADS = 64
_PATIENCE = timedelta(seconds=20)


class _Servicer:
    """Handlers of bytes, which are JSON."""

    def __init__(self, log: sharedlog.Log, desk: Desk, statements: Path) -> None:
        self._log = log
        self._desk = desk
        self._statements = statements

    def pay(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Have a payment decided."""
        payment = Payment(**json.loads(request))
        if payment.cents <= 0 or payment.source == payment.destination:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing is paid")
        return json.dumps(self._desk.decided(payment)).encode()

    def report(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Return an account's requests and balance."""
        account = request.decode()
        try:
            # Behind all that is decided by now. The view has that once it has come so far.
            position = self._log.publish(ACCOUNTS, publishing("report"), key=account)
            there = sharedlog.await_consumer(self._log, "statements", ACCOUNTS, position, _PATIENCE)
        except sharedlog.LogError:
            there = False
        if not there:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the view is behind: ask again")
        with contextlib.closing(sqlite3.connect(self._statements, timeout=30)) as view:
            lines = view.execute("SELECT request, cents FROM line WHERE account = ?", (account,))
            found = lines.fetchall()
        requests = sorted({name for name, _ in found if name})
        return json.dumps(
            {"requests": requests, "balance": sum(each for _, each in found)}
        ).encode()


def main(name: str, log_url: str, directory: Path) -> None:
    """Serve until standard input closes."""
    with (
        sharedlog.open(log_url, timeout=PATIENCE) as log,
        Desk(log, name, directory / f"service-{name}.db") as desk,
        rifl.Deduplicator(
            # A call that was running when the process died runs again: the desk knows it.
            f"sqlite:///{directory / f'calls-{name}.db'}",
            methods={PAY: "idempotent", REPORT: None},
        ) as dedup,
    ):
        servicer = _Servicer(log, desk, directory / "statements.db")
        server = grpc.server(ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()])
        handlers: dict[str, Any] = {
            "Pay": grpc.unary_unary_rpc_method_handler(servicer.pay),
            "Report": grpc.unary_unary_rpc_method_handler(servicer.report),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
