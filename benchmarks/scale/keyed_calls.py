"""Keyed calls over SQLite beside those of another tree: ``python -m benchmarks.scale.keyed_calls``.

Each tree has a server process over a store with ``--keys`` keys (``--beside-keys`` the other
one's). The same load of plain gRPC calls, each with a key of its own, goes to both in turn.
Prints ratios to the other tree (``--beside``: a work tree of another commit; by default this
one), with intervals of 95 %, of throughput, latency and processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

# Of the tree on the path, which may be another one: what both have.
from benchmarks import server as of_tree
from benchmarks.behaviors import behavior_of
from benchmarks.callers import Load, run_sync
from rifl._server import Deduplicator
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2

__all__ = ["main", "serve"]

_HERE = Path(__file__).resolve().parents[2]
_TOGETHER = 500
# More are written in bulk, which only this tree can.
_MOST_CALLED = 1_000_000


def _fill(dedup: Any, keys: int) -> None:
    """Carry keyed calls out in the server's own steps, without gRPC."""
    store, policy = dedup._store, MethodPolicy.of("idempotent")
    peer, waiting = namespace_id(b""), []
    for number in range(keys):
        call = Call(peer, b"", None, b"%s" % uuid.uuid4().hex.encode(), fingerprint=b"x" * 16)
        call.method = of_tree.METHOD
        decision = store.claim(call, policy)
        if not hasattr(decision, "attempt"):
            decision = decision.wait()
        waiting.append(store.finish(decision.attempt, CompletionRecord(response=b"y" * 24)))
        if len(waiting) == _TOGETHER or number == keys - 1:
            for pending in waiting:
                pending.wait()
            waiting.clear()


def serve(path: Path, flavor: str, kind: str, keys: int) -> None:
    """Open the store, fill it, and serve until SIGTERM; prints the port."""
    dedup = Deduplicator(f"sqlite:///{path}", default=kind, keys_from="anyone")
    _fill(dedup, keys)
    if flavor == "aio":
        asyncio.run(_serve_aio(dedup, kind))
    else:
        _serve_sync(dedup, kind)


def _serve_sync(dedup: Any, kind: str) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    server = grpc.server(ThreadPoolExecutor(64), interceptors=[dedup.interceptor()])
    _add(dedup, server, behavior_of(kind, "", "sync"))
    server.start()
    stopped.wait()
    server.stop(0.1).wait()
    dedup.close()


async def _serve_aio(dedup: Any, kind: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    _add(dedup, server, behavior_of(kind, "", "aio"))
    await server.start()
    await stopped.wait()
    await server.stop(0.1)
    await dedup.aclose()


def _add(dedup: Any, server: Any, behavior: Any) -> None:
    server.add_generic_rpc_handlers((of_tree._handlers(behavior),))
    dedup.add_to_server(server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)


@contextlib.contextmanager
def _side(tree: Path, path: Path, flavor: str, kind: str, keys: int) -> Iterator[Any]:
    """Run a server of that tree; yields what loads it."""
    from benchmarks.sides import cpu_s

    if keys > _MOST_CALLED:
        from benchmarks.scale.keys import fill

        fill(path, keys)
        keys = 0
    command = [sys.executable, "-P", __file__, "--serve", str(path), "--flavor", flavor]
    process = subprocess.Popen(
        [*command, "--kind", kind, "--keys", str(keys)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"the server of {tree} did not start")
        with grpc.insecure_channel(f"127.0.0.1:{int(line)}") as channel:
            stub: Any = channel.unary_unary(
                of_tree.METHOD,
                request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
                response_deserializer=rifl_pb2.MetadataEntry.FromString,
            )

            def call(request: Any, timeout: float) -> Any:
                key = (("idempotency-key", uuid.uuid4().hex),)
                return stub(request, timeout=timeout, metadata=key)

            def load(callers: int, seconds: float) -> Load:
                before = cpu_s(process.pid)
                found = run_sync(call, callers, seconds)
                spent_us = (cpu_s(process.pid) - before) * 1e6
                return found._replace(server_cpu_us=spent_us / (found.calls_per_s * seconds))

            yield load
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _measure(options: argparse.Namespace, flavor: str, kind: str) -> None:
    from benchmarks.pairs import figure_of, run_pairs

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        paths = Path(folder) / "ours.db", Path(folder) / "theirs.db"
        trees = (_HERE, options.keys), (options.beside.resolve(), options.beside_keys)
        ours, theirs = (
            stack.enter_context(_side(tree, path, flavor, kind, keys))
            for path, (tree, keys) in zip(paths, trees, strict=True)
        )
        for callers in options.callers:

            def loading(load: Callable[[int, float], Load], of: int = callers) -> Any:
                return lambda: load(of, options.seconds)

            found = figure_of(run_pairs(loading(ours), loading(theirs), options.pairs))
            told = [
                f"{name} {spread.median:.3f} [{spread.low:.3f}, {spread.high:.3f}]"
                for name in ("server_cpu", "throughput", "latency")
                for spread in (getattr(found, name),)
            ]
            print(
                f"{flavor}, {kind}, {callers} callers: {'; '.join(told)}; "
                f"{found.server_cpu_us:.0f} us, {found.calls_per_s:.0f} calls/s",
                flush=True,
            )


def main() -> None:
    """Measure, and print a line for each load."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.keyed_calls", description=__doc__)
    parser.add_argument("--beside", type=Path, default=_HERE)
    parser.add_argument("--keys", type=int, default=84_000)
    parser.add_argument("--beside-keys", type=int, default=84_000)
    parser.add_argument("--flavor", choices=("sync", "aio"))
    parser.add_argument("--kind", choices=("idempotent", "plain"))
    parser.add_argument("--callers", type=int, nargs="+", default=(1, 16))
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument("--serve", type=Path, help="serve over this store")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.flavor, options.kind, options.keys)
        return
    for flavor in (options.flavor,) if options.flavor else ("sync", "aio"):
        for kind in (options.kind,) if options.kind else ("idempotent", "plain"):
            _measure(options, flavor, kind)


if __name__ == "__main__":
    main()
