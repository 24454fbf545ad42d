"""Servers and groups that are measured, with a delay in front of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from curp.log import create_log

__all__ = ["Server", "behind", "group", "process"]


class Server(NamedTuple):
    """A server process under load."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time it has used, from /proc."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(module: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run a process that prints its address and ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def behind(address: str, delay_ms: float) -> Iterator[str]:
    """Reach an address with a delay; where."""
    if not delay_ms:
        yield address
        return
    with process("benchmarks.delay", "--to", address, "--delay-ms", str(delay_ms)) as found:
        yield found[0]


@contextlib.contextmanager
def group(log: str, delay_ms: float) -> Iterator[tuple[str, Server, Server]]:
    """One replica and one witness; where clients reach it, and both processes."""
    create_log(log)
    with contextlib.ExitStack() as stack:
        witness = stack.enter_context(process("curp.witness", "--listen", "127.0.0.1:0"))
        listed = stack.enter_context(behind(witness[0], delay_ms))
        leader = stack.enter_context(
            process(
                *("benchmarks.keyed", "--listen", "127.0.0.1:0", "--log", log),
                *("--witness", listed),
            )
        )
        target = stack.enter_context(behind(leader[0], delay_ms))
        yield target, Server(*leader), Server(*witness)
