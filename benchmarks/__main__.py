"""``python -m benchmarks``: rifl beside plain grpcio, paired and interleaved."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
from rich.console import Console
from rich.table import Table

import rifl
import rifl.aio
from benchmarks.callers import Load, run_aio, run_sync
from benchmarks.pairs import Figure, compare
from benchmarks.server import METHOD
from rifl.v1 import rifl_pb2

_HEADER_BYTES = 58  # of a usual CallHeader with its token


class Case(NamedTuple):
    """One figure: a store and a declaration beside a baseline, and its target."""

    name: str
    store: str
    kind: str
    callers: int
    header: bool
    target: float | None


class Server(NamedTuple):
    """A server process under load."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time it has used, from /proc."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def charged(self, run: Callable[[], Load], seconds: float) -> Load:
        """Run a load and add what the server spent on it."""
        before = self.cpu_s()
        load = run()
        calls = load.calls_per_s * seconds
        return load._replace(server_cpu_us=(self.cpu_s() - before) / calls * 1e6)


def _cases(quick: bool) -> list[Case]:
    cases = []
    for callers in (1, 16):
        cases.append(Case("memory", "memory:", "plain", callers, False, 0.85))
        cases.append(Case("memory, same header", "memory:", "plain", callers, True, 0.85))
    cases.append(Case("sqlite, one commit", "sqlite:///{}", "idempotent", 16, False, 0.6))
    if not quick:
        cases.append(Case("sqlite, two commits", "sqlite:///{}", "plain", 16, False, None))
        cases.append(Case("sqlite, one commit", "sqlite:///{}", "idempotent", 1, False, None))
        cases.append(Case("sqlite, two commits", "sqlite:///{}", "plain", 1, False, None))
        cases.append(Case("sqlite, one commit", "sqlite:///{}", "idempotent", 64, False, None))
    return cases


@contextlib.contextmanager
def _server(flavor: str, store: str, kind: str) -> Iterator[Server]:
    """Run a server process; stop it by its id."""
    with tempfile.TemporaryDirectory() as folder:
        url = store.format(Path(folder) / "bench.db")
        arguments = ["--flavor", flavor, "--store", url, "--kind", kind]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            yield Server(f"127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _stub(channel: Any) -> Any:
    return channel.unary_unary(
        METHOD,
        request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
        response_deserializer=rifl_pb2.MetadataEntry.FromString,
    )


def _with_header(stub: Any) -> Any:
    # Fresh bytes each time, as in a call's header: gRPC indexes a value it saw before.
    return lambda request, timeout: stub(
        request, timeout=timeout, metadata=(("bench-bin", os.urandom(_HEADER_BYTES)),)
    )


def _measure_sync(case: Case, pairs: int, seconds: float) -> Figure:
    with (
        _server("sync", case.store, case.kind) as ours,
        _server("sync", "none", "") as theirs,
        rifl.connect(ours.address) as rifl_channel,
        grpc.insecure_channel(theirs.address) as plain_channel,
    ):
        variant, baseline = _stub(rifl_channel), _stub(plain_channel)
        if case.header:
            baseline = _with_header(baseline)
        return compare(
            f"sync, {case.callers} callers, {case.name}",
            lambda: ours.charged(lambda: run_sync(variant, case.callers, seconds), seconds),
            lambda: theirs.charged(lambda: run_sync(baseline, case.callers, seconds), seconds),
            pairs,
        )


def _measure_aio(case: Case, pairs: int, seconds: float) -> Figure:
    with (
        _server("aio", case.store, case.kind) as ours,
        _server("aio", "none", "") as theirs,
        asyncio.Runner() as runner,
    ):

        async def open_channels() -> tuple[Any, Any]:
            return rifl.aio.connect(ours.address), grpc.aio.insecure_channel(theirs.address)

        rifl_channel, plain_channel = runner.run(open_channels())
        variant, baseline = _stub(rifl_channel), _stub(plain_channel)
        if case.header:
            baseline = _with_header(baseline)

        def run(call: Callable[..., Any]) -> Load:
            return runner.run(run_aio(call, case.callers, seconds))

        try:
            return compare(
                f"aio, {case.callers} callers, {case.name}",
                lambda: ours.charged(lambda: run(variant), seconds),
                lambda: theirs.charged(lambda: run(baseline), seconds),
                pairs,
            )
        finally:
            runner.run(rifl_channel.close())
            runner.run(plain_channel.close())


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf", "bitarray", "rifl")},
    }


def main() -> None:
    """Measure, print a table, write every figure to ``--out``."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one run")
    parser.add_argument("--quick", action="store_true", help="only the figures with a target")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--flavor", choices=["sync", "aio", "both"], default="both")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    console = Console()
    table = Table(title="rifl / plain grpcio, medians of pairs")
    for column in (
        "case",
        "throughput",
        "95 %",
        "target",
        "latency",
        "CPU client",
        "server",
        "calls/s",
    ):
        table.add_column(column, justify="left" if column == "case" else "right")
    figures = []
    for case in _cases(arguments.quick):
        for flavor, measure in (("sync", _measure_sync), ("aio", _measure_aio)):
            if arguments.flavor not in (flavor, "both") or arguments.only not in case.name:
                continue
            figure = measure(case, arguments.pairs, arguments.seconds)
            figures.append({**figure._asdict(), "target": case.target})
            console.print(f"{figure.name}: {figure.throughput:.2f}", style="dim")
            table.add_row(
                figure.name,
                f"{figure.throughput:.2f}",
                f"{figure.low:.2f}-{figure.high:.2f}",
                "" if case.target is None else f"{case.target:.2f}",
                f"{figure.latency:.2f}",
                f"{figure.client_cpu:.2f}",
                f"{figure.server_cpu:.2f}",
                f"{figure.calls_per_s:.0f} / {figure.baseline_calls_per_s:.0f}",
            )
    console.print(table)
    if arguments.out:
        content = {"machine": _machine(), "figures": figures}
        arguments.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
