"""Keys on the disk: ``python -m benchmarks.scale.keys --keys 10000000 --more 1000000``.

A SQLite store is filled with keyed calls of several namespaces, in bulk. A process then opens it,
beside one that opens an empty store, carries out more keyed calls, and lives through the end of
some retentions. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.server import METHOD
from rifl._server import Deduplicator
from rifl._wire.records import record_to_bytes
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

__all__ = ["fill", "main", "measure"]

# The first is that of callers without a name.
_PEERS = (b"", *(b"peer %d" % number for number in range(7)))
_NAMESPACES = tuple(sorted(map(namespace_id, _PEERS)))
_RECORD = CompletionRecord(response=b"y" * 24)
_PAYLOAD = b"x" * 16
_OPENINGS = 3
# Calls whose records wait for one commit.
_TOGETHER = 500
_RETENTION_S = 86_400
# In keys, how much of the bulk ends together.
_ENDING = 100_000
# The keys of the bulk, spread over their namespace.
_ROWS = """
WITH RECURSIVE rows(row) AS (SELECT 0 UNION ALL SELECT row + 1 FROM rows WHERE row < :last)
INSERT INTO rifl_call SELECT :client,
    CAST(printf('%015x%017x', row * :step, row * 40503) AS BLOB), :payload, :method,
    CASE WHEN row < :ending THEN :lived + 60 ELSE :lived + :retention END, :record, :lived, :number
FROM rows
"""


@contextlib.contextmanager
def _in_bulk(connection: sqlite3.Connection) -> Iterator[None]:
    """Have the index made, and keys counted, once all rows are there."""
    made = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE type='trigger' OR name='rifl_until'"
    ).fetchall()
    for kind, name, _ in made:
        connection.execute(f"DROP {kind} {name}")
    yield
    for _, _, sql in made:
        connection.execute(sql)


def fill(path: Path, keys: int) -> None:
    """Make a store with so many completed keyed calls, some of which end in a minute."""
    Deduplicator(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode=DELETE", "journal_mode=OFF", "synchronous=OFF"):
        connection.execute(f"PRAGMA {setting}")
    meta = dict(connection.execute("SELECT name, value FROM rifl_meta"))
    record, each = record_to_bytes(_RECORD), keys // len(_NAMESPACES)
    with _in_bulk(connection):
        for client_id in _NAMESPACES:
            connection.execute("INSERT INTO rifl_client VALUES (?, 1, x'', 0)", (client_id,))
            values = {"client": client_id, "last": each - 1, "payload": _PAYLOAD, "method": METHOD}
            values |= {"lived": meta["lived_s"], "retention": _RETENTION_S, "record": record}
            values |= {"ending": _ENDING // len(_NAMESPACES), "number": meta["commits"]}
            values["step"] = (1 << 60) // each
            connection.execute(_ROWS, values)
            counts = (client_id, each, each * (32 + len(record)), meta["commits"])
            connection.execute("INSERT INTO rifl_keys VALUES (?, ?, ?, ?)", counts)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def _memory_mib() -> float:
    """Return the most memory that this process had so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def serve(path: Path, more: int) -> dict[str, float]:
    """Open the store, call, and live through the end of retentions, in this process."""
    now_s = [0.0]

    def clock() -> float:
        return now_s[0]

    # Of a clock that a test sets all time counts.
    clock.is_lived_through = True  # type: ignore[attr-defined]
    began = time.perf_counter()
    dedup = Deduplicator(
        f"sqlite:///{path}", default="idempotent", clock=clock, bounds=Bounds(max_keys=1 << 40)
    )
    found = {"opened_s": time.perf_counter() - began, "opened_mib": _memory_mib()}
    if more:
        before = dedup.statistics().unacknowledged
        store: Any = dedup._store
        for start in range(0, more, _TOGETHER):
            _call(store, range(start, min(more, start + _TOGETHER)))
        found["called_mib"] = _memory_mib()
        now_s[0] = 120.0
        for _ in range(_ENDING // 10_000 + 1):
            store.expire_keys()
        found["ended_keys"] = before + more - dedup.statistics().unacknowledged
        found["ended_mib"] = _memory_mib()
    dedup.close()
    return found


def _call(store: Any, numbers: range) -> None:
    """Carry keyed calls out in the server's own steps, without gRPC."""
    policy, waiting = MethodPolicy(kind=Kind.IDEMPOTENT), []
    for number in numbers:
        client_id = _NAMESPACES[number % len(_NAMESPACES)]
        key = b"more %d" % number
        call = Call(client_id, b"", None, key, fingerprint=_PAYLOAD, method=METHOD)
        decision = store.claim(call, policy)
        if isinstance(decision, Later):
            decision = decision.wait()
        if decision.verdict is not Verdict.NEW:
            raise RuntimeError(f"{call.rpc_id} is {decision.verdict}")
        waiting.append(store.finish(decision.attempt, _RECORD))
    for pending in waiting:
        pending.wait()


def _in_a_process(path: Path, more: int) -> dict[str, float]:
    command = (sys.executable, "-m", "benchmarks.scale.keys", "--serve", str(path))
    done = subprocess.run(
        (*command, "--more", str(more)), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(keys: int, more: int) -> dict[str, Any]:
    """Return medians over openings, an empty store's beside them, and the memory at the end."""
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "full.db", Path(folder) / "empty.db"
        fill(full, keys)
        size = full.stat().st_size
        pairs = [(_in_a_process(full, 0), _in_a_process(empty, 0)) for _ in range(_OPENINGS)]
        last = _in_a_process(full, more)
    return {
        "keys": keys,
        "more": more,
        "opened_s": round(statistics.median(one["opened_s"] for one, _ in pairs), 3),
        "longest_s": round(max(one["opened_s"] for one, _ in pairs), 3),
        "empty_store_s": round(statistics.median(one["opened_s"] for _, one in pairs), 3),
        "ended_keys": int(last["ended_keys"]),
        "mib": round(last["ended_mib"], 1),
        "store_mib": round(size / 2**20),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.keys", description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--more", type=int, default=1_000_000)
    parser.add_argument("--serve", type=Path, help="open this store, and call")
    options = parser.parse_args()
    found = (
        serve(options.serve, options.more) if options.serve else measure(options.keys, options.more)
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
