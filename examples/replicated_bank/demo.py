"""``make demo-curp``: a group under load whose leaders are killed, again and again.

Three replicas and a witness as real processes. Leaders are killed with SIGKILL; with
``--stops`` every third one is stopped and continued instead: a zombie that wakes up and
believes that it still leads. With ``--log etcd`` the log is in an etcd of three nodes,
one of which is killed each time, too: etcd's own leader every other time. Afterwards
every payment is looked for on the statements. Exits with 1 if one was made twice or lost,
or if the callers' record breaks a promise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.etcd_cluster import EtcdCluster, EtcdNode
from chaos.group_processes import GroupProcesses, NoLeader
from examples.replicated_bank.load import Load, LoadReport

_CALM_S = 1.5
_STUCK_S = 5.0
_DOWN_S = 1.0
_STOPPED_S = 2.0


def main() -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.replicated_bank.demo", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long leaders are killed")
    parser.add_argument(
        "--stops", action="store_true", help="stop and continue every third leader instead"
    )
    parser.add_argument("--log", choices=("sqlite", "etcd"), default="sqlite")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--accounts", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="curp-demo-"))
    try:
        with contextlib.ExitStack() as stack:
            log, etcd = f"sqlite:///{directory / 'bank.log'}?group=bank", None
            if options.log == "etcd":
                etcd = stack.enter_context(EtcdCluster(directory / "etcd"))
                log = etcd.url(group="bank")
            group = stack.enter_context(GroupProcesses(directory, "examples.replicated_bank", log))
            leader = group.leader()
            kept = "an etcd of three nodes" if etcd else "a log in a file"
            console.print(f"Three replicas, one witness, {kept}; {leader} leads.")
            with Load(
                group.replicas,
                callers=options.callers,
                accounts=options.accounts,
                seed=options.seed,
            ) as load:
                load.await_answers(1)
                failovers = _kill_leaders(
                    console, group, load, options.seconds, etcd, stops_too=options.stops
                )
                report = load.finish()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print(console, report, failovers)
    exact = not (report.duplicates or report.lost or report.violations)
    return 0 if exact else 1


def _kill_leaders(
    console: Console,
    group: GroupProcesses,
    load: Load,
    seconds: float,
    etcd: EtcdCluster | None,
    *,
    stops_too: bool,
) -> int:
    failovers = stops = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_CALM_S)
        leader = group.leader()
        before = load.answered
        stopped = stops_too and (failovers + stops) % 3 == 2
        held = stopped and etcd is None
        node = _kill_node(etcd, failovers) if etcd else None
        began = time.monotonic()
        if stopped:
            group.stop(leader)
        else:
            group.kill(leader)
        try:
            successor = group.leader(not_=leader, timeout_s=_STUCK_S if held else 60.0)
        except NoLeader:
            if not held:
                raise
            # Stopped inside a commit it keeps the lock of the log's file: no replica can
            # write until it goes on. A log in Redis or etcd has no such lock.
            group.resume(leader)
            console.print("     the stopped leader held the log's lock", style="dim")
            stops += 1
            load.await_answers(1)
            continue
        took_s = time.monotonic() - began
        load.await_answers(1)
        failovers += 1
        console.print(
            f"{failovers:3}  {before:6} answers  {leader} {'stopped' if stopped else 'killed'}, "
            f"{successor} leads after {took_s:.2f} s{f'; etcd {node.name} killed' if node else ''}",
            highlight=False,
            style="dim",
        )
        time.sleep(_STOPPED_S if stopped else _DOWN_S)
        if stopped:
            group.resume(leader)
        else:
            group.start(leader)
        if etcd and node:
            etcd.start(node)
            etcd.wait_ready(node)
    return failovers


def _kill_node(etcd: EtcdCluster, turn: int) -> EtcdNode:
    """Kill a node of etcd, its leader every other time."""
    node = etcd.leader() if turn % 2 == 0 else etcd.nodes[turn % len(etcd.nodes)]
    node.kill()
    return node


def _print(console: Console, report: LoadReport, failovers: int) -> None:
    table = Table(title="The bank's statements, read afterwards")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("payments", f"{report.calls:,}"),
        ("effects", f"{report.effects:,}"),
        ("duplicates", f"{report.duplicates:,}"),
        ("lost", f"{report.lost:,}"),
        ("unknown, and reported as such", f"{report.unknown:,}"),
        ("failovers", f"{failovers:,}"),
        ("longest pause", f"{report.longest_pause_ms:,.0f} ms"),
        ("in one round trip", f"{report.fast_path_share:.1%}"),
        ("broken promises (chaos.check)", f"{len(report.violations):,}"),
    ):
        table.add_row(name, value)
    console.print(table)
    for violation in report.violations[:10]:
        console.print(str(violation), style="red")
    line = {
        "calls": report.calls,
        "effects": report.effects,
        "duplicates": report.duplicates,
        "lost": report.lost,
        "failovers": failovers,
        "fast_path_share": round(report.fast_path_share, 4),
        "longest_pause_ms": round(report.longest_pause_ms),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
