"""``python -m benchmarks.groups``: what replication costs, and what one round trip saves.

Latency over injected delay on every hop; throughput and processor time on one machine;
the share of answers that took one round trip, by how skewed the keys are; the pause
after a leader is killed; how soon a replica leads over a long log; who is answered while the
disk of a log is slow. Prints a table, and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import itertools
import json
import random
import shutil
import statistics as statistics_of
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

import rifl
from benchmarks.callers import run_sync
from benchmarks.keyed import PUT
from benchmarks.recovery import recovery
from benchmarks.served import behind, group, process
from benchmarks.slow_log import SYNC_MS, WRITE_MS, slow_log
from benchmarks.ways import FLAVORS, WAYS, Measured, side_by_side
from chaos.etcd_cluster import EtcdCluster
from chaos.group_processes import GroupProcesses
from chaos.redis_server import RedisServer
from curp.client import statistics
from rifl.v1 import rifl_pb2

_KEYS = 1000
_DELAYS_MS = (0, 1, 5)
_SKEWS = (0.0, 0.5, 0.8, 0.99)
_PARTS = ("latency", "throughput", "share", "failover", "recovery", "slow")
_STARTS = 3
_CALLERS = (1, 16, 64)
# Where a log is, by its name.
_Logs = Callable[[str], str]


@contextlib.contextmanager
def open_channel(
    targets: str | Sequence[str], group_path: str = "adaptive"
) -> Iterator[rifl.Channel]:
    """Open a channel to a group that answers, and whose leader is known."""
    several = not isinstance(targets, str)
    with rifl.connect(targets, follow_leaders=several, group_path=group_path) as channel:
        # The first answer comes when a replica leads; the next call knows the leader.
        stub = _stub(channel, PUT)
        for _ in range(20):
            stub(_request(0), timeout=60.0)
            time.sleep(0.02)
        yield channel


def _stub(channel: Any, method: str) -> Any:
    return channel.unary_unary(
        method,
        request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
        response_deserializer=rifl_pb2.MetadataEntry.FromString,
    )


def _request(key: int) -> rifl_pb2.MetadataEntry:
    return rifl_pb2.MetadataEntry(key=f"key-{key}", value=b"x" * 24)


def _put(channel: rifl.Channel, key: int) -> object:
    return _stub(channel, PUT)(_request(key), timeout=60.0)


def _keyed(stub: Any, draw: Callable[[], int]) -> Callable[..., Any]:
    return lambda request, timeout: stub(_request(draw()), timeout=timeout)


def keyed_call(channel: Any) -> Callable[..., Any]:
    """Return a call of one of a thousand keys, each as often as others; it waits."""
    return _keyed(_stub(channel, PUT), _zipf(0, 3))


def _zipf(skew: float, seed: int) -> Callable[[], int]:
    weights = itertools.accumulate(1 / rank**skew for rank in range(1, _KEYS + 1))
    sums = list(weights)
    dice = random.Random(seed)  # noqa: S311 - repeatable
    lock = threading.Lock()

    def draw() -> int:
        with lock:
            return bisect.bisect_left(sums, dice.random() * sums[-1])

    return draw


def latency(
    flavor: str, seconds: float, pairs: int, delay_ms: float, redis: str
) -> dict[str, Measured]:
    """One caller: plain gRPC, rifl alone, and the ways to a group over a Redis as far away.

    The plain call goes the same way to a server alike: it is what one round trip takes.
    """
    log = f"redis://{{store}}/0?group=bench-{flavor}-{delay_ms}"
    with (
        process("benchmarks.keyed", "--listen", "127.0.0.1:0") as alone,
        behind(alone[0], delay_ms) as single,
        behind(redis, delay_ms) as store,
        group(log.format(store=store), delay_ms) as (target, _, _),
    ):
        ways = {"alone": single, **dict.fromkeys(WAYS, target), "plain": single}
        draw = _zipf(0, 2)
        return side_by_side(
            flavor,
            ways,
            PUT,
            lambda: _request(draw()),
            (),
            callers=1,
            seconds=seconds / pairs,
            pairs=pairs,
        )


@contextlib.contextmanager
def _logs(kind: str, directory: Path) -> Iterator[_Logs]:
    """Say where the log of each measurement is, by its name."""
    if kind == "sqlite":
        yield lambda name: f"sqlite:///{directory / name}?group=bench"
        return
    with EtcdCluster(directory / "etcd") as cluster:
        yield lambda name: cluster.url(group=name)


def throughput(
    flavor: str, logs: _Logs, seconds: float, pairs: int, callers: int
) -> dict[str, Measured]:
    """Calls a second and processor time a call, over a file that is synced, or etcd."""
    with group(logs(f"log-{flavor}-{callers}"), 0) as (target, leader, witness):
        draw = _zipf(0, 4)
        return side_by_side(
            flavor,
            dict.fromkeys(WAYS, target),
            PUT,
            lambda: _request(draw()),
            (leader, witness),
            callers=callers,
            seconds=seconds / pairs,
            pairs=pairs,
        )


def fast_share(logs: _Logs, seconds: float, skew: float) -> float:
    """The share of answers that took one round trip, of sixteen callers."""
    with (
        group(logs(f"log-zipf-{skew}"), 0) as (target, _, _),
        open_channel(target, "fast") as channel,
    ):
        before = statistics(channel)
        run_sync(_keyed(_stub(channel, PUT), _zipf(skew, 5)), 16, seconds)
        after = statistics(channel)
    if before is None or after is None:
        raise RuntimeError("the channel found no group")
    final = sum(after) - sum(before)
    return (after.fast - before.fast) / final


def failover(directory: Path, logs: _Logs, kills: int) -> list[float]:
    """Seconds from the kill of a leader to the first answer, by the documented settings."""
    pauses = []
    with (
        GroupProcesses(directory, "benchmarks.keyed", logs("log-failover")) as running,
        open_channel(running.replicas) as channel,
    ):
        stub = _stub(channel, PUT)
        for number in range(kills):
            for key in range(100):
                stub(_request(key), timeout=60.0)
            leader = running.leader()
            began = time.monotonic()
            running.kill(leader)
            stub(_request(number), timeout=60.0)
            pauses.append(time.monotonic() - began)
            running.start(leader)
    return pauses


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=5, help="of runs that take turns in that time")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slow-s", type=float, default=40.0, help="for how long a disk is slow")
    parser.add_argument("--only", choices=_PARTS)
    parser.add_argument(
        "--log",
        choices=("sqlite", "etcd"),
        default="sqlite",
        help="where the log of all but latency and recovery is: a file, or an etcd of three nodes",
    )
    parser.add_argument("--entries", type=int, default=100_000, help="in the log to recover from")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="curp-bench-"))
    result: dict[str, Any] = {}
    running = contextlib.ExitStack()

    def wanted(part: str) -> bool:
        return options.only in (None, part)

    try:
        if wanted("latency"):
            with contextlib.ExitStack() as stack:
                redis = RedisServer(directory)
                stack.callback(redis.stop)
                at = f"127.0.0.1:{redis.port}"
                for flavor, delay_ms in itertools.product(FLAVORS, _DELAYS_MS):
                    found = latency(flavor, options.seconds, options.pairs, delay_ms, at)
                    result[f"latency_{flavor}_{delay_ms}"] = _json(found)
                    trip_ms = found["plain"].median_ms
                    trips = ", ".join(
                        f"{name} {each.median_ms:.2f} ms = {each.median_ms / trip_ms:.2f}"
                        for name, each in found.items()
                    )
                    console.print(f"{flavor}, {delay_ms} ms each way, in plain calls: {trips}")
        logs = running.enter_context(_logs(options.log, directory))
        for flavor, callers in itertools.product(FLAVORS, _CALLERS if wanted("throughput") else ()):
            found = throughput(flavor, logs, options.seconds, options.pairs, callers)
            result[f"throughput_{flavor}_{callers}"] = _json(found)
            for name, each in found.items():
                console.print(f"{flavor}, {callers} callers, {name}: {_figures(each)}")
        for skew in _SKEWS if wanted("share") else ():
            share = fast_share(logs, options.seconds, skew)
            result[f"fast_share_{skew}"] = share
            console.print(f"Zipf {skew}, 16 callers: {share:.1%} in one round trip")
        if wanted("failover"):
            result["failover_s"] = failover(directory, logs, options.kills)
            pauses = sorted(result["failover_s"])
            console.print(
                f"leader killed {options.kills} times, pauses of {pauses[0]:.2f} to "
                f"{pauses[-1]:.2f} s, median {statistics_of.median(pauses):.2f} s: "
                + " ".join(f"{pause:.2f}" for pause in result["failover_s"])
            )
        if wanted("recovery"):
            for way, starts in recovery(directory, options.entries, _STARTS).items():
                result[f"recovery_{way}"] = [start._asdict() for start in starts]
                slowest = max(starts)
                console.print(
                    f"{slowest.entries:,} entries, recovered from the {way}: at most "
                    f"{slowest.seconds:.2f} s, {slowest.cpu_s:.2f} s of processor time"
                )
        if wanted("slow") and options.log == "sqlite":
            url = f"sqlite:///{directory / 'log-slow'}?group=bench"
            slow = slow_log(directory, url, options.slow_s, _put)
            result["slow"] = slow._asdict()
            console.print(
                f"{options.slow_s:g} s of {WRITE_MS} ms a write and {SYNC_MS} ms a sync: "
                f"{slow.answers} answers, {slow.pause_s:.1f} s without one at most, "
                f"the lead lost {slow.lost} times"
            )
    except (grpc.RpcError, RuntimeError) as error:
        console.print(f"{error}", style="red")
        return 1
    finally:
        running.close()
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(result), flush=True)
    return 0


def _json(found: dict[str, Measured]) -> dict[str, Any]:
    return {
        name: {**each._asdict(), "to_last": each.to_last._asdict()} for name, each in found.items()
    }


def _figures(each: Measured) -> str:
    leader_us, witness_us = each.servers_cpu_us
    return (
        f"{each.to_last.median:.2f} ({each.to_last.low:.2f}-{each.to_last.high:.2f}) of synced, "
        f"{each.calls_per_s:,.0f} a second, {each.median_ms:.1f} ms, client "
        f"{each.client_cpu_us:.0f} us, leader {leader_us:.0f} us, witness {witness_us:.0f} us"
    )


if __name__ == "__main__":
    sys.exit(main())
