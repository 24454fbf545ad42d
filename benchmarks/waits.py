"""``python -m benchmarks.waits``: what a recorded call of one sync caller waits for.

Beside plain gRPC, rifl alone, and calls whose records are not sent, but counted as accepted:
what these take is the leader's part. All through the same delay, in turns. Prints how long each
takes, in plain calls; and of the recorded ones when their record was sent, its verdict
came, and the leader's answer.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc

import rifl
from benchmarks.keyed import PUT
from benchmarks.served import behind, group, process
from curp._core.witness_table import WitnessVerdict
from curp.client._record import Record
from curp.client._sync_multicallable import SyncMultiCallable
from curp.client._sync_path import SyncPath
from curp.client._sync_records import SyncRecords
from rifl.v1 import rifl_pb2

__all__ = ["Parts", "main", "measure"]

_WARM_CALLS = 60
_KEYS = 1000


class _Watched:
    """Notes, in seconds, what happens to the record of the one call in flight."""

    def __init__(self) -> None:
        self.sends = True
        self.sent = self.verdict = self.leader = 0.0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Look at everything that clients of this process do."""
        recorded, sent, finish = SyncPath.record, SyncRecords.send, SyncMultiCallable._finish

        def record(path: SyncPath, address: str, request: bytes) -> Record:
            if self.sends:
                return recorded(path, address, request)
            found = Record(request)
            found.end(WitnessVerdict.ACCEPTED)
            return found

        def send(records: SyncRecords, record: Record) -> None:
            self.sent = time.perf_counter()
            self.verdict = 0.0
            record.on_end(self._ended)
            sent(records, record)

        def finished(method: SyncMultiCallable, *rest: Any) -> None:
            self.leader = time.perf_counter()
            finish(method, *rest)

        patch = unittest.mock.patch.object
        with (
            patch(SyncPath, "record", record),
            patch(SyncRecords, "send", send),
            patch(SyncMultiCallable, "_finish", finished),
        ):
            yield

    def parts(self, began: float) -> Parts:
        """Return what was seen of the call that began then."""
        verdict = self.verdict and self.verdict - began
        return Parts(self.sent - began, verdict, self.leader - began)

    def _ended(self, record: Record) -> None:
        del record
        self.verdict = time.perf_counter()


class Parts(NamedTuple):
    """Of one recorded call, in seconds from its begin; ``verdict``: 0 for none in its time."""

    sent: float
    verdict: float
    leader: float


def measure(delay_ms: float, calls: int) -> tuple[dict[str, list[float]], list[Parts]]:
    """Return how long calls of each kind took, in seconds, and the parts of the recorded."""
    watched = _Watched()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="curp-bench-"))
        alone, _ = stack.enter_context(process("benchmarks.keyed", "--listen", "127.0.0.1:0"))
        single = stack.enter_context(behind(alone, delay_ms))
        log = f"sqlite:///{Path(directory) / 'log'}?group=bench"
        target, _, _ = stack.enter_context(group(log, delay_ms))
        stack.enter_context(watched.watch())
        channels: dict[str, Any] = {"plain": grpc.insecure_channel(single)}
        channels["rifl alone"] = rifl.connect(single)
        channels["recorded"] = rifl.connect(target, group_path="fast")
        channels["record not sent"] = rifl.connect(target, group_path="fast")
        senders = {
            name: _sender(stack.enter_context(each), name) for name, each in channels.items()
        }
        took: dict[str, list[float]] = {name: [] for name in channels}
        parts: list[Parts] = []
        for at in range(_WARM_CALLS + calls):
            for name, send in senders.items():
                watched.sends = name != "record not sent"
                began = time.perf_counter()
                send(at)
                ended = time.perf_counter()
                if at < _WARM_CALLS:
                    # Until clients know their group.
                    time.sleep(0.005)
                    continue
                took[name].append(ended - began)
                if name == "recorded":
                    parts.append(watched.parts(began))
        return took, parts


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waits", description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=1.0, help="each way")
    parser.add_argument("--calls", type=int, default=1000, help="of each kind")
    options = parser.parse_args()
    _print(*measure(options.delay_ms, options.calls))
    return 0


def _sender(channel: Any, name: str) -> Any:
    # Each with keys of its own: what others called a moment ago would have to be synced first.
    stub = channel.unary_unary(PUT, request_serializer=lambda request: request.SerializeToString())
    return lambda number: stub(
        rifl_pb2.MetadataEntry(key=f"{name}-{number * 7 % _KEYS}", value=b"x" * 24), timeout=60.0
    )


def _print(took: dict[str, list[float]], parts: list[Parts]) -> None:
    plain_s = statistics.median(took["plain"])
    for name, each in took.items():
        median_s = statistics.median(each)
        print(f"{name}: {median_s * 1e3:.2f} ms, {median_s / plain_s:.2f} of plain")
    answered = [each for each in parts if each.verdict]
    sent, verdict, leader = (statistics.median(each) * 1e3 for each in zip(*answered, strict=True))
    first = sum(each.verdict < each.leader for each in answered) / len(parts)
    print(
        f"recorded: sent after {sent:.2f} ms, verdict after {verdict:.2f}, leader's answer after "
        f"{leader:.2f}; the verdict was first in {first:.0%} of {len(parts)} calls"
    )


if __name__ == "__main__":
    sys.exit(main())
