"""The time until a replica that starts alone leads again, from the log or a snapshot.

``python -m benchmarks.recovery --entries 100000``; also a part of ``benchmarks.groups``.
A log in SQLite is filled with calls of a hundred clients and their answers, eight of each
not acknowledged; then processes are started over it. Measured from the replica's start, its
process being there with all its imports, until it leads: reading and replaying, all of it
in one thread, taking over, and the leadership's first entry.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grpc

import curp
from benchmarks.keyed import PUT, Map, declare, handlers
from curp._core.entries import ClientRegistered, Entry, Operation
from curp._wire.entries import entry_to_bytes
from curp.log import create_log, open_engine
from curp.log._values import NewLogEntry
from rifl._wire.header import fingerprint
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2

__all__ = ["Recovery", "main", "recovery"]

_CLIENTS = 100
_KEYS = 1000
_UNACKNOWLEDGED = 8
_APPEND = 1000
_TERM_S = 1.0
_LOOK_S = 0.002
_WAIT_S = 300.0


class Recovery(NamedTuple):
    """One start. ``cpu_s``: processor time of the whole process meanwhile."""

    seconds: float
    cpu_s: float
    entries: int


def recovery(directory: Path, entries: int, starts: int) -> dict[str, list[Recovery]]:
    """Fill a log and start over it: ``log`` alone, then from a ``snapshot`` at its end."""
    url = f"sqlite:///{directory / f'log-recovery-{entries}'}?group=bench"
    _fill(url, entries)
    found = {"log": [_start(url, "no") for _ in range(starts)]}
    _start(url, "save")
    found["snapshot"] = [_start(url, "load") for _ in range(starts)]
    return found


def _fill(url: str, count: int) -> None:
    create_log(url)
    engine = open_engine(url)
    try:
        number = engine.take_leadership("filler", "nowhere:1", term_s=0.001)
        values = Map()
        tail = 0
        batch: list[NewLogEntry] = []
        for each in range(count):
            for entry in _entries(each, values):
                batch.append(NewLogEntry(entry_to_bytes(entry)))
            if len(batch) >= _APPEND or each == count - 1:
                tail = engine.append(
                    batch, configuration=number, expected_tail=tail, append_id=os.urandom(16)
                )
                batch = []
        engine.end_leadership(number)
    finally:
        engine.close()


def _entries(each: int, values: Map) -> list[Entry]:
    """Return a call's entries; its answer is what the handler gives in replay."""
    seq, client = divmod(each, _CLIENTS)
    client_id, seq = client + 1, seq + 1
    request = rifl_pb2.MetadataEntry(key=f"key-{each * 7919 % _KEYS}", value=b"%024d" % each)
    body = request.SerializeToString()
    operation = Operation(
        client_id,
        seq,
        None,
        PUT,
        body,
        CompletionRecord(response=values.put(request, None).SerializeToString()),
        stamp=(each, each),
        fingerprint=fingerprint(PUT, body),
        first_incomplete=max(1, seq - _UNACKNOWLEDGED),
    )
    return [ClientRegistered(client_id), operation] if seq == 1 else [operation]


def _start(url: str, snapshot: str) -> Recovery:
    """Start a process over the log, and have it tell."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", "--over", url, "--snapshot", snapshot],
        stdout=subprocess.PIPE,
        check=True,
        timeout=_WAIT_S,
    )
    return Recovery(**json.loads(done.stdout))


def _lead(url: str, snapshot: str) -> Recovery:
    """Lead over the log, and no longer than that takes."""
    declare()
    values = Map()
    hooks = curp.StateHooks(reset=values.reset)
    if snapshot != "no":
        hooks = replace(hooks, snapshot=values.snapshot, restore=values.restore)
    replica = curp.Replica(
        url,
        name="r1",
        address="127.0.0.1:1",
        hooks=hooks,
        # No snapshot while it is measured.
        tuning=curp.Tuning(lease_term_s=_TERM_S, snapshot_entries=1 << 40),
    )
    with replica:
        server = grpc.server(ThreadPoolExecutor(4), interceptors=[replica.interceptor()])
        replica.registrar(server).add_registered_method_handlers("bench.v1.Keyed", handlers(values))
        replica.add_to_server(server)
        began, cpu = time.monotonic(), time.process_time()
        replica.start()
        while replica.role != "leader":
            if replica.role == "stopped":
                raise RuntimeError(replica.waiting_for)
            time.sleep(_LOOK_S)
        found = Recovery(
            time.monotonic() - began, time.process_time() - cpu, replica.status().applied
        )
        if snapshot == "save":
            replica.snapshot()
    return found


def main() -> int:
    """Measure, or be the process that is measured; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--over", help="the log's URL, of the process that is measured")
    parser.add_argument("--snapshot", choices=("no", "save", "load"), default="no")
    options = parser.parse_args()
    if options.over:
        print(json.dumps(_lead(options.over, options.snapshot)._asdict()), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="curp-recovery-") as directory:
        found = recovery(Path(directory), options.entries, options.starts)
    print(json.dumps({way: [each._asdict() for each in starts] for way, starts in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
