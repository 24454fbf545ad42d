"""Forks with a group's parts made: ``python -m tests.curp.replica.forking DIRECTORY``.

In a process of its own: threads of other tests must not be there at the fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

import curp
from chaos.sim.group.log import LogStore
from curp._core.witness_table import WitnessTable
from curp.log import create_log
from curp.witness._handlers import WitnessHandlers
from rifl.core._shared.errors import ForkedProcess


def main(directory: Path) -> int:
    url = f"sqlite:///{directory / 'group.log'}?group=g"
    create_log(url)
    replica = curp.Replica(url, name="r1", address="127.0.0.1:1")
    made: Any = replica
    engine, witness = LogStore().engine(), WitnessHandlers(WitnessTable())
    server = grpc.server(None)  # type: ignore[arg-type]  # never started
    child = os.fork()
    if child == 0:
        uses: list[Callable[[], Any]] = [
            replica.interceptor,
            replica.aio_interceptor,
            lambda: replica.add_to_server(server),
            replica.start,
            replica.status,
            replica.statistics,
            made._log_engine.tail,
            made._log_engine.leadership,
            made._store.running,
            engine.leadership,
            witness.status,
            lambda: witness.record(b"", bytes),
        ]
        count = 0
        for use in uses:
            try:
                use()
            except ForkedProcess:
                count += 1
        replica.close()
        print(f"{count} of {len(uses)} refused", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(replica.role, flush=True)
    replica.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
