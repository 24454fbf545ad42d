"""``python -m benchmarks.switches``: how often a call's threads sleep and are woken.

Beside plain grpcio with a header as long, and beside rules that neither take a lock nor compute
(``benchmarks.constant``): context switches a call, of the server's process
and of the client's, by what the kernel counts of each (``voluntary``: the thread went to sleep;
``involuntary``: it was put off its processor, by what else runs); and with ``--futexes`` the
futex calls, counted by ``strace``, which makes everything slower: there only the counts mean
anything. The load is the benchmark's, from one process, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.cases import HEADER, Side
from benchmarks.databases import Databases
from benchmarks.sides import Run, running

__all__ = ["Switches", "futexes_of", "main", "measure"]

_SIDES = {
    "header": HEADER,
    "ours": Side("memory", client="rifl"),
    "constant": Side("memory", client="constant"),
}
_COUNT = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s.*futex$", re.MULTILINE)


class Switches(NamedTuple):
    """A call's: medians over turns."""

    server_voluntary: float
    server_involuntary: float
    client_voluntary: float
    client_involuntary: float


def measure(flavor: str, callers: int, turns: int, seconds: float) -> dict[str, Switches]:
    """Return what each side's calls cost, in context switches."""
    found: dict[str, list[Switches]] = {name: [] for name in _SIDES}
    with _running(flavor) as sides:
        for turn in range(turns):
            for name in list(sides) if turn % 2 else reversed(list(sides)):
                run, pid = sides[name]
                found[name].append(_charged(run, pid, callers, seconds))
    return {
        name: Switches(*(statistics.median(each) for each in zip(*counts, strict=True)))
        for name, counts in found.items()
    }


def futexes(flavor: str, callers: int, seconds: float) -> dict[str, float]:
    """Return the futex calls of each side's server a call, while ``strace`` looks on."""
    found = {}
    with _running(flavor) as sides, tempfile.TemporaryDirectory() as folder:
        for name, (run, pid) in sides.items():
            out = Path(folder) / name
            command = ["strace", "-c", "-f", "-e", "trace=futex", "-o", str(out), "-p", str(pid)]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as traced:
                # Says that it is attached, to each thread.
                if traced.stderr is None or not traced.stderr.readline():
                    raise RuntimeError("strace did not attach")
                calls = run(callers, seconds).calls_per_s * seconds
                traced.send_signal(signal.SIGINT)
            found[name] = futexes_of(out.read_text()) / calls
    return found


def futexes_of(summary: str) -> int:
    """Return the futex calls in a summary of ``strace -c``."""
    counted = _COUNT.search(summary)
    return int(counted[1]) if counted else 0


@contextlib.contextmanager
def _running(flavor: str) -> Iterator[dict[str, tuple[Run, int]]]:
    with contextlib.ExitStack() as stack:
        databases = stack.enter_context(Databases())
        sides = {}
        for name, side in _SIDES.items():
            before = _children()
            run = stack.enter_context(running(side, flavor, databases))
            (pid,) = _children() - before
            run(1, 0.2)
            sides[name] = (run, pid)
        yield sides


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def _charged(run: Run, pid: int, callers: int, seconds: float) -> Switches:
    before = (*_of(pid), *_of_self())
    calls = run(callers, seconds).calls_per_s * seconds
    after = (*_of(pid), *_of_self())
    return Switches(*((b - a) / calls for a, b in zip(before, after, strict=True)))


def _of(pid: int) -> tuple[int, int]:
    voluntary = involuntary = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    voluntary += int(line.split()[1])
                elif line.startswith("nonvoluntary_ctxt_switches"):
                    involuntary += int(line.split()[1])
    return voluntary, involuntary


def _of_self() -> tuple[int, int]:
    # Threads that have ended count, too: a load's callers do.
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw, used.ru_nivcsw


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.switches", description=__doc__)
    parser.add_argument("--flavor", choices=["sync", "aio"], action="append")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a run")
    parser.add_argument("--futexes", action="store_true", help="by strace, if it is there")
    options = parser.parse_args()
    if options.futexes and shutil.which("strace") is None:
        parser.error("there is no strace")
    table = Table()
    for column in ("", "side", "server: slept", "put off", "client: slept", "put off", "futexes"):
        table.add_column(column)
    for flavor in options.flavor or ("sync", "aio"):
        for callers in options.callers:
            found = measure(flavor, callers, options.turns, options.seconds)
            counted = futexes(flavor, callers, 2.0) if options.futexes else {}
            for name, switches in found.items():
                told = [f"{each:.2f}" for each in switches]
                table.add_row(
                    f"{flavor}, {callers}", name, *told, f"{counted[name]:.2f}" if counted else ""
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
