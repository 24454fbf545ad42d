"""``make demo-payments``: payments without distributed transactions, whatever is killed.

Callers pay at two services, which put each payment into a log and return what executors decide;
views follow the same log. Beside it they make the same payments at a service that writes two
databases one after the other. Executors, views, services and the log's engine are killed by SIGKILL
again and again, and started again. Exits with 1 if money is lost or made, an account is overdrawn,
a payment is decided twice, or a view is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from examples.payments import views
from examples.payments.audit import Audit, audit
from examples.payments.callers import Callers
from examples.payments.processes import NAIVE, SERVICES, Processes, kind_of
from examples.payments.rules import payment_of
from examples.shared_log.engines import ENGINES

__all__ = ["main"]

_LOOK_S = 0.5
# Between two kills, at least: what is started again imports for a second.
_CALM_S = 3.0
# Payments that are not paid for so long wait for the next kill.
_HELD_S = 1.0
# For each kill that is waited for there are so many.
_KILL_EVERY = 200
# Payments that stand still for so long get no further.
_STUCK_S = 90.0


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.payments", description=__doc__)
    parser.add_argument("--payments", type=int, default=20_000)
    parser.add_argument("--accounts", type=int, default=200)
    parser.add_argument("--log", choices=sorted(ENGINES), default="redis")
    parser.add_argument(
        "--executors", choices=("sqlite", "postgresql"), default="sqlite", help="their database"
    )
    parser.add_argument("--callers", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1, help="of who is killed")
    options = parser.parse_args(arguments)
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="rifl-payments-"))
    try:
        with ExitStack() as stack:
            processes = Processes(
                stack, directory, options.log, options.executors, options.accounts
            )
            found, killed = _run(console, options, processes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _report(console, found, killed)
    return 0 if found.wrong == 0 and found.requests == options.payments else 1


def _run(
    console: Console, options: argparse.Namespace, processes: Processes
) -> tuple[Audit, Counter[str]]:
    """Pay while processes are killed; what became of it, and how many of each kind were."""
    dice = Random(options.seed)  # noqa: S311 - repeatable, not secret
    killed: Counter[str] = Counter()
    victims = processes.victims(dice)
    # One of each kind, but for few payments.
    awaited = min(len({*map(kind_of, victims)}), max(1, options.payments // _KILL_EVERY))
    payments = [payment_of(each, options.accounts) for each in range(options.payments)]
    callers = Callers(payments, awaited)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        paid = progress.add_task("decided", total=options.payments)
        naive = progress.add_task("paid naively", total=options.payments)
        addresses = [processes.address(each) for each in SERVICES]
        callers.start(addresses, processes.address(NAIVE), options.callers)
        try:
            done, grew_s, killed_s = (0, 0), time.monotonic(), 0.0
            while min(done) < options.payments and not callers.errors:
                time.sleep(_LOOK_S)
                now, now_s = (len(callers.told), len(callers.naive_told)), time.monotonic()
                if now > done:
                    grew_s = now_s
                goes_on = now > done or (callers.waits and now_s - grew_s > _HELD_S)
                if goes_on and now_s - killed_s > _CALM_S:
                    victims = victims or processes.victims(dice)
                    victim = victims.pop()
                    callers.killed()
                    # The naive one each time: it is one process, and the others are a dozen.
                    for each in dict.fromkeys((victim, NAIVE)):
                        processes.kill(each)
                        killed[kind_of(each)] += 1
                    killed_s = time.monotonic()
                elif now_s - grew_s > _STUCK_S:
                    raise RuntimeError(f"stuck, with {done} of {options.payments} paid")
                done = now
                progress.update(paid, completed=done[0])
                progress.update(naive, completed=done[1])
        finally:
            callers.stop()
            callers.join()
    directory = processes.directory
    callers.write(directory / "callers.db")
    if not processes.settled():
        raise RuntimeError("the views do not get what is in the log")
    # A view is what the log says, whenever it is made.
    views.create("statements", directory / "anew.db")
    anew = f"sqlite:///{directory / 'anew.db'}"
    views.view_of(processes.log, "statements", "anew", anew).once()
    return audit(directory, processes.bank, processes.redis), killed


def _report(console: Console, found: Audit, killed: Counter[str]) -> None:
    table = Table(title="The databases, read afterwards")
    table.add_column("")
    table.add_column("through the log", justify="right")
    table.add_column("two databases, naively", justify="right")
    for name, ours, naive in (
        ("payments", f"{found.requests:,}", f"{found.requests:,}"),
        ("decided", f"{found.decided:,}", ""),
        ("approved", f"{found.approved:,}", ""),
        ("declined", f"{found.declined:,}", ""),
        ("money before, cents", f"{found.money_before:,}", f"{found.money_before:,}"),
        ("money after", f"{found.money_after:,}", f"{found.naive_money_after:,}"),
        (
            "accounts with a wrong balance",
            f"{found.ledger_wrong:,}",
            f"{found.naive_wrong_accounts:,}",
        ),
        ("times an account was overdrawn", f"{found.overdrawn:,}", ""),
        ("decided twice", f"{found.decided_twice:,}", ""),
        ("callers told otherwise", f"{found.told_wrong:,}", ""),
        ("wrong in views", f"{found.views_wrong:,}", ""),
        ("reports, and stale ones", f"{found.reports:,}, {found.reports_stale:,}", ""),
        ("longest pause of all callers", f"{found.longest_pause_s:,.2f} s", ""),
        *((f"kills of one: {kind}", f"{count:,}", "") for kind, count in sorted(killed.items())),
    ):
        table.add_row(name, ours, naive)
    console.print(table)
    line = {
        "requests": found.requests,
        "decided": found.decided,
        "approved": found.approved,
        "declined": found.declined,
        "money_before": found.money_before,
        "money_after": found.money_after,
        "overdrawn": found.overdrawn,
        "decided_twice": found.decided_twice,
        "views_wrong": found.views_wrong,
        "naive_money_after": found.naive_money_after,
        "naive_wrong_accounts": found.naive_wrong_accounts,
        "longest_pause_ms": round(found.longest_pause_s * 1000),
        "ledger_wrong": found.ledger_wrong,
        "told_wrong": found.told_wrong,
        "reports": found.reports,
        "reports_stale": found.reports_stale,
        "kills": killed.total(),
        "killed": dict(sorted(killed.items())),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
