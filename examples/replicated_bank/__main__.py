"""One replica of the bank: serves until a signal, or until its standard input closes."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import structlog

import curp
from examples.bank.v1 import bank_pb2_grpc
from examples.replicated_bank.bank import MemoryBank

_THREADS = 32


def main() -> int:
    """Serve; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.replicated_bank", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--address", help="where clients reach it; by default where it listens")
    parser.add_argument("--name", help="unique in the group; by default the address")
    parser.add_argument("--log", required=True, metavar="URL", help="sqlite:///file?group=NAME")
    parser.add_argument("--witness", action="append", default=[], metavar="HOST:PORT")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    over = signals_taken()
    replica = curp.Replica(
        options.log,
        name=options.name or options.listen,
        address=options.address or options.listen,
        witnesses=options.witness,
        # Payments on different accounts commute: they are durable in one round trip.
        conflict_keys={
            "/bank.v1.Bank/Deposit": "account",
            "/bank.v1.Bank/Transfer": ["from_account", "to_account"],
            "/bank.v1.Bank/Balance": "account",
            "/bank.v1.Bank/Statement": "account",
        },
        read_only=["/bank.v1.Bank/Balance", "/bank.v1.Bank/Statement"],
    )
    with replica:
        server = grpc.server(
            ThreadPoolExecutor(_THREADS),
            interceptors=[replica.interceptor()],
            # A replica that comes back takes its own port, and no process shares it.
            options=[("grpc.so_reuseport", 0)],
        )
        bank = replica.servicer(MemoryBank)
        bank_pb2_grpc.add_BankServicer_to_server(bank, replica.registrar(server))
        replica.add_to_server(server)
        server.add_insecure_port(options.listen)
        server.start()
        replica.start()
        print(f"listening {options.listen}", flush=True)
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            # The parent process holds the other end: this process must not outlive it.
            threading.Thread(target=_await_end, args=(over,), daemon=True).start()
        # In steps: a signal's handler runs when this thread is awake.
        while over.empty():
            with contextlib.suppress(queue.Empty):
                over.put(over.get(timeout=0.5))
    server.stop(1).wait()
    return 0


def signals_taken() -> queue.SimpleQueue[int]:
    """Return where SIGTERM and SIGINT are put from now on; in forked children they do as before."""
    # A handler runs between any two steps of the main thread. An event has a lock, which this
    # thread may hold just then; the queue has none that Python code could be interrupted in.
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    process = os.getpid()
    before: dict[int, Any] = {}

    def take(number: int, frame: Any) -> None:
        del frame
        if os.getpid() == process:
            came.put(number)
        else:
            # A child has no server to stop.
            signal.signal(number, before[number])
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, take)
    return came


def _await_end(over: queue.SimpleQueue[int]) -> None:
    os.read(0, 1)
    over.put(0)


if __name__ == "__main__":
    sys.exit(main())
