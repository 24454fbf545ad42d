"""One run: a bank process, a faulty path, callers, and faults as they were planned."""

from __future__ import annotations

import contextlib
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from chaos.fault_plan import Fault, PlannedFault
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import create_books
from examples.demo.audit import Audit, audit
from examples.demo.callers import Answer, Caller
from examples.demo.payments import OPENING_CENTS, Payment
from examples.server_process import ServerProcess

__all__ = ["Run", "run"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run: the payments, the faults, and how both sides are set up."""

    behind: str
    connect: Callable[[str], AbstractContextManager[Caller]]
    payments: Sequence[Payment]
    faults: Sequence[PlannedFault]
    threads: int


def run(plan: Run, on_progress: Callable[[int], None]) -> Audit:
    """Make all payments while the faults strike, then count; leaves nothing behind."""
    directory = Path(tempfile.mkdtemp(prefix="rifl-demo-"))
    try:
        books = directory / "bank.db"
        create_books(books, OPENING_CENTS.items())
        with (
            # Left last: when something fails the channel closes first, which
            # ends the calls these threads still wait for.
            ThreadPoolExecutor(plan.threads, thread_name_prefix="caller") as pool,
            _bank(books, plan.behind) as server,
            FaultyPath() as path,
        ):
            path.lead_to(server.start())
            with plan.connect(path.target) as caller:
                answers = _load(plan, pool, caller, server, path, on_progress)
            server.stop()
        return audit(books, plan.payments, answers)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _bank(books: Path, behind: str) -> ServerProcess:
    return ServerProcess("examples.bank", "--books", str(books), "--behind", behind)


def _load(
    plan: Run,
    pool: ThreadPoolExecutor,
    caller: Caller,
    server: ServerProcess,
    path: FaultyPath,
    on_progress: Callable[[int], None],
) -> dict[str, Answer]:
    """Call from all threads; this thread strikes the faults."""
    waiting: queue.SimpleQueue[Payment] = queue.SimpleQueue()
    for payment in plan.payments:
        waiting.put(payment)
    answers: dict[str, Answer] = {}
    # Threads that have finished a call: no fault comes before all have.
    begun: set[int] = set()
    changed = threading.Condition()

    def call_until_empty() -> None:
        for payment in _taken_from(waiting):
            answer = caller(payment)
            with changed:
                begun.add(threading.get_ident())
                answers[payment.reference] = answer
                on_progress(len(answers))
                changed.notify()

    callers = [pool.submit(call_until_empty) for _ in range(plan.threads)]

    def due(fault: PlannedFault) -> bool:
        return len(answers) >= fault.after and len(begun) == plan.threads

    try:
        for fault in plan.faults:
            with changed:
                while not due(fault) and not any(caller.done() for caller in callers):
                    changed.wait(timeout=0.2)
                if not due(fault):
                    break  # a caller failed, or there were too few calls
            _strike(fault, server, path)
        for finished in as_completed(callers):
            finished.result()
    finally:
        for _ in _taken_from(waiting):
            pass  # after an error no thread starts another call
    return answers


def _taken_from(waiting: queue.SimpleQueue[Payment]) -> Iterator[Payment]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def _strike(fault: PlannedFault, server: ServerProcess, path: FaultyPath) -> None:
    match fault.fault:
        case Fault.RESET:
            path.reset()
        case Fault.DROP_ANSWERS:
            path.drop_answers(fault.seconds)
        case Fault.KILL:
            path.lead_to(None)
            server.kill()
            path.lead_to(server.start())
