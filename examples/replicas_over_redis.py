"""Three server processes over one Redis, behind one address; one of them is killed.

A call may reach any replica, and its retry another one: they share the records. The
handler's effect and its completion record are one Redis transaction, so a SIGKILL in
between costs nothing. Needs the extra ``rifl-grpc[redis]``, and a ``redis-server`` on the
PATH. Run it: ``python -m examples.replicas_over_redis``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import redis

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.redis_process import running_redis
from examples.server_process import ServerProcess

CALLS, CALLERS, CENTS = 240, 8, 5
# One address for all replicas; each call goes to the next of them.
ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class RedisBank(bank_pb2_grpc.BankServicer):
    """A bank whose books are in Redis."""

    def __init__(self, books: redis.Redis) -> None:
        self._books = books

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in, exactly once: the record is the first command of the transaction."""
        receipt = bank_pb2.Receipt(entry=self._books.incr("next entry"))
        with self._books.pipeline() as transaction:
            rifl.record(context, receipt, transaction)
            transaction.incrby(f"cents of {request.account}", request.cents)
            transaction.rpush("statement", f"{receipt.entry} {request.reference}")
            transaction.execute()
        return receipt


def serve(socket: str) -> None:
    """One replica."""
    # A replica that was not heard of for two seconds is dead, and its calls are free.
    records = f"unix://{socket}?beat_s=0.2&dead_after_s=2"
    with (
        redis.Redis(unix_socket_path=socket) as books,
        rifl.Deduplicator(records, methods={"/bank.v1.Bank/Deposit": "atomic"}) as dedup,
    ):
        server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(RedisBank(books), server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


def main() -> None:
    """Deposit all the while, kill a replica, and count."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        socket = stack.enter_context(running_redis(directory))
        replicas = [
            stack.enter_context(ServerProcess("examples.replicas_over_redis", "serve", str(socket)))
            for _ in range(3)
        ]
        ports = [replica.start() for replica in replicas]
        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)

        many_made = threading.Semaphore(0)
        options = [("grpc.service_config", ROUND_ROBIN)]
        with rifl.connect(target, options=options) as channel:
            stub = bank_pb2_grpc.BankStub(channel)

            def pay(number: int) -> int:
                request = bank_pb2.DepositRequest(
                    reference=f"payment {number}", account="alice", cents=CENTS
                )
                entry: int = stub.Deposit(request, timeout=60).entry
                many_made.release()
                return entry

            with ThreadPoolExecutor(CALLERS) as callers:
                payments = [callers.submit(pay, number) for number in range(CALLS)]
                for _ in range(CALLS // 4):
                    many_made.acquire(timeout=60)
                replicas[0].kill()
                receipts = {
                    f"{payment.result()} payment {number}"
                    for number, payment in enumerate(payments)
                }

        with redis.Redis(unix_socket_path=str(socket), decode_responses=True) as books:
            statement = books.lrange("statement", 0, -1)
            expect("payments on the statement", len(statement), CALLS)
            expect("receipts are what the statement says", set(statement) == receipts, True)
            expect("cents on the account", books.get("cents of alice"), str(CALLS * CENTS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main()
