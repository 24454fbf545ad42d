"""``make demo``: a bank under faults, behind gRPC's retries and behind rifl.

The same payments are made three times over the same kind of faulty path, and
counted in the bank's own books. Exits with 1 if a run behind rifl made a payment
twice or lost one.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.fault_plan import PlannedFault, plan_faults
from examples.demo.audit import Audit
from examples.demo.callers import grpc_retries, rifl_retries
from examples.demo.payments import draw_payments
from examples.demo.picture import picture
from examples.demo.report import COLUMNS, json_line, print_schedule, print_table, rows_of
from examples.demo.run import Run, run

_MOST_PLAIN_RUNS = 3


def main() -> int:
    """Run the demo and return the exit status."""
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 100)
    began = time.monotonic()
    payments = draw_payments(options.seed, options.calls)

    def faults(seed: int) -> tuple[PlannedFault, ...]:
        planned = plan_faults(
            seed,
            calls=options.calls,
            resets=options.resets,
            drops=options.drops,
            kills=options.kills,
        )
        print_schedule(console, seed, planned)
        return planned

    def counted(plan: Run, title: str) -> Audit:
        with _progress(console) as progress:
            task = progress.add_task(title, total=options.calls)
            return run(plan, lambda done: progress.update(task, completed=done))

    plan = Run(
        behind="grpc",
        connect=grpc_retries,
        payments=payments,
        faults=(),
        threads=options.threads,
    )
    # Which calls a fault hits is real, so a run can be lucky; then another seed
    # is tried, in the open.
    for seed in itertools.count(options.seed):
        plan = dataclasses.replace(plan, faults=faults(seed))
        plain = counted(plan, "1  gRPC's own retries")
        if plain.duplicates or seed + 1 == options.seed + _MOST_PLAIN_RUNS:
            break
        console.print("No duplicates this time; once more with another seed.")
    plan = dataclasses.replace(plan, connect=rifl_retries)
    rifl_plain = counted(dataclasses.replace(plan, behind="rifl"), "2  rifl, service unchanged")
    exact = counted(
        dataclasses.replace(plan, behind="rifl-atomic"), "3  rifl, records in its transactions"
    )

    audits = (plain, rifl_plain, exact)
    print_table(console, audits)
    if options.picture:
        options.picture.write_text(picture(COLUMNS, rows_of(audits)))
    print(
        json_line(
            calls=options.calls,
            seed=seed,
            seconds=time.monotonic() - began,
            plain=plain,
            rifl_plain=rifl_plain,
            rifl=exact,
        ),
        flush=True,
    )
    return 0 if rifl_plain.exact and exact.exact else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of payments and faults")
    parser.add_argument("--calls", type=int, default=2000, help="payments a run")
    parser.add_argument("--threads", type=int, default=8, help="callers on the one channel")
    parser.add_argument("--resets", type=int, default=6)
    parser.add_argument("--drops", type=int, default=6, help="times answers are dropped")
    parser.add_argument("--kills", type=int, default=4, help="SIGKILLs of the server")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="an SVG of the table, too")
    options = parser.parse_args()
    if not 1 <= options.threads <= options.calls // 20:
        parser.error("there must be at least 20 calls for each thread")
    return options


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<38}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


if __name__ == "__main__":
    sys.exit(main())
