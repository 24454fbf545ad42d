"""A Celery task whose id is the key of its call: delivered twice, it is paid once.

The broker delivers the task again when the worker process that ran it is killed: a task that
is acknowledged late runs at least once. Its call happens once. Needs the extra
``rifl-grpc[examples]``. Run it: ``python -m examples.recipes.celery_task``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.signals import worker_process_init, worker_process_shutdown

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.recipes.bank_server import unlucky_bank
from examples.recipes.web_process import running
from examples.redis_process import running_redis


class KilledOnce(Task):  # type: ignore[misc]
    """A task whose process is killed at the worst moment, once: its call was made, and
    Celery does not know yet.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run it."""
        result = self.run(*arguments, **named)
        with contextlib.suppress(FileExistsError):
            Path(os.environ["KILLED"]).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return result


app = Celery(
    "payments",
    broker=os.environ.get("BROKER"),
    backend=os.environ.get("RESULTS"),
    task_cls=KilledOnce,  # the example's bad luck; yours is not needed
)
app.conf.update(
    task_acks_late=True,  # acknowledged when it has ended, not when it begins
    task_reject_on_worker_lost=True,  # back to the queue when its process was killed
    worker_prefetch_multiplier=1,
)
in_this_process: dict[str, rifl.Channel] = {}


@worker_process_init.connect
def connect(**_: Any) -> None:
    """Open the channel of a process of the pool, after the fork."""
    in_this_process["channel"] = rifl.connect(os.environ["BANK_TARGET"], session="payment tasks")


@worker_process_shutdown.connect
def disconnect(**_: Any) -> None:
    """Close it."""
    in_this_process.pop("channel").close()


@app.task(bind=True, name="pay_in", max_retries=100, default_retry_delay=5)
def pay_in(self: Any, account: str, cents: int) -> int:
    """Pay in, and return the entry in the books."""
    payment = bank_pb2.DepositRequest(reference="task", account=account, cents=cents)
    stub = bank_pb2_grpc.BankStub(in_this_process["channel"])
    try:
        receipt = stub.Deposit(payment, timeout=10, metadata=[rifl.key(self.request.id)])
    except rifl.CallError as error:
        if error.outcome in (rifl.Outcome.EXECUTED, rifl.Outcome.REPLAYED):
            raise  # the bank's own answer, such as "no such account"
        raise self.retry(exc=error) from error  # under the same id, hence the same key
    return int(receipt.entry)


def main() -> None:
    """Send a task whose first process is killed, so that it runs again; it pays once."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(running_redis(directory))
        served = stack.enter_context(unlucky_bank())
        broker, results = f"redis+socket://{redis}", f"file://{directory}"
        killed = directory / "killed"
        environment = {"BROKER": broker, "RESULTS": results, "KILLED": str(killed)}
        worker = ("celery", "--quiet", "--app", "examples.recipes.celery_task", "worker")
        settings = ("--concurrency", "1", "--loglevel", "CRITICAL", "--without-gossip")
        stack.enter_context(
            running(*worker, *settings, environment={**served.environment(), **environment})
        )

        app.conf.update(broker_url=broker, result_backend=results)
        sent = pay_in.delay("alice", 500)
        expect("entry, after an answer was lost and a process killed", sent.get(timeout=60), 1)
        expect("a process was killed", killed.exists(), True)
        expect("times the handler ran", served.bank.runs, 1)
        expect("balance", served.ledger.balance("alice"), 500)


if __name__ == "__main__":
    main()
