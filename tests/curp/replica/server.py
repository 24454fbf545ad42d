"""A replica in a process of its own: ``python -m tests.curp.replica.server JSON``.

Prints ``ready``, then its role at every change. ``die_at`` names a fault point of the
leader and how often it is passed before the process kills itself there. ``options``: of the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

import curp
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.ledger import CONFLICTS, READ_ONLY, Bank

__all__: list[str] = []


def _dying(point: str, times: int) -> Any:
    lock = threading.Lock()
    passed = 0

    def strike(at: str) -> None:
        nonlocal passed
        with lock:
            passed += at == point
            if passed >= times and at == point:
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()

    return strike


class _Wordy(Bank):
    """Answers with so many bytes more, in a field that is not known."""

    def __init__(self, answer_bytes: int) -> None:
        super().__init__()
        more = bank_pb2.DepositRequest(reference="m" * answer_bytes)
        self._more = b"\x9a\x06" + more.SerializeToString()[1:]

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        receipt = super().Deposit(request, context)
        receipt.MergeFromString(self._more)
        return receipt


def main() -> None:
    """Serve until killed."""
    given = json.loads(sys.argv[1])
    die_at = given.pop("die_at", None)
    options = given.pop("options", None)
    answer_bytes = given.pop("answer_bytes", 0)
    url, address = given.pop("url"), given["address"]
    tuning = curp.Tuning(**given.pop("tuning", {}))
    replica = curp.Replica(
        url,
        conflict_keys=CONFLICTS,
        read_only=READ_ONLY,
        tuning=tuning,
        **given,
    )
    if die_at is not None:
        replica._store.fault = _dying(*die_at)
    server = grpc.server(
        ThreadPoolExecutor(32), interceptors=[replica.interceptor()], options=options
    )
    bank = replica.servicer(partial(_Wordy, answer_bytes) if answer_bytes else Bank)
    bank_pb2_grpc.add_BankServicer_to_server(bank, replica.registrar(server))
    replica.add_to_server(server)
    server.add_insecure_port(address)
    server.start()
    replica.start()
    sys.stdout.write("ready\n")
    role, pause = "", threading.Event()
    while True:
        if replica.role != role:
            role = replica.role
            sys.stdout.write(f"{role}\n")
            sys.stdout.flush()
        pause.wait(0.01)


if __name__ == "__main__":
    main()
