"""One side of a pair: a server process, and a call to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
from benchmarks.behaviors import OTHERS
from benchmarks.callers import Load, run_aio, run_sync
from benchmarks.cases import Side
from benchmarks.databases import Databases
from benchmarks.server import METHOD
from lease_server.v1 import lease_server_pb2 as lease_pb
from rifl._wire.header import HEADER_KEY
from rifl.v1 import rifl_pb2

__all__ = ["Run", "cpu_s", "running", "server_process"]

_HEADER_BYTES = 60  # of a usual CallHeader with its token
_CROWD = 1000
_GRANT = "/lease_server.v1.LeaseServer/Grant"
_RETRY_POLICY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
Run = Callable[[int, float], Load]


@contextlib.contextmanager
def running(side: Side, flavor: str, databases: Databases) -> Iterator[Run]:
    """Yield what loads this side: so many callers for so many seconds."""
    store, own = databases.urls(side.store)
    if side.kind in OTHERS:
        store = "none"
    arguments = ["--flavor", flavor, "--store", store, "--kind", side.kind, "--own", own]
    arguments += ["--idle", str(side.idle)]
    ours = side.client == "rifl"
    with server_process("benchmarks.server", *arguments) as (port, pid):
        address = f"127.0.0.1:{port}"
        given = _metadata(side, address)
        options = _options(side)

        def charged(load: Callable[[], Load], seconds: float) -> Load:
            before = cpu_s(pid)
            found = load()
            calls = found.calls_per_s * seconds
            return found._replace(server_cpu_us=(cpu_s(pid) - before) / calls * 1e6)

        if flavor == "sync":
            channel: Any = (
                rifl.connect(address) if ours else grpc.insecure_channel(address, options)
            )
            with channel:
                call = _call(channel, given)
                yield lambda callers, seconds: charged(
                    lambda: run_sync(call, callers, seconds), seconds
                )
            return
        with asyncio.Runner() as runner:

            async def connect() -> Any:
                if ours:
                    return rifl.aio.connect(address)
                return grpc.aio.insecure_channel(address, options)

            channel = runner.run(connect())
            call = _call(channel, given)
            try:
                yield lambda callers, seconds: charged(
                    lambda: runner.run(run_aio(call, callers, seconds)), seconds
                )
            finally:
                runner.run(channel.close())


@contextlib.contextmanager
def server_process(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a server process; yields its port and its id, by which it is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdout is None:
            raise RuntimeError("it was started without a pipe")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} {' '.join(arguments)} did not start")
        yield int(line), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used, all its threads, seconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _call(channel: Any, metadata: Callable[[], Any] | None) -> Callable[..., Any]:
    # Registered, as generated stubs are.
    stub = channel.unary_unary(
        METHOD,
        request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
        response_deserializer=rifl_pb2.MetadataEntry.FromString,
        _registered_method=True,
    )
    if metadata is None:
        return stub  # type: ignore[no-any-return]
    return lambda request, timeout: stub(request, timeout=timeout, metadata=metadata())


def _metadata(side: Side, address: str) -> Callable[[], Any] | None:
    if side.client == "header":
        # Fresh bytes each time, as in a call's header: gRPC indexes a value it saw before.
        return lambda: (("bench-bin", os.urandom(_HEADER_BYTES)),)
    if side.client == "keyed":
        return lambda: (("idempotency-key", uuid.uuid4().hex),)
    if side.client == "replay":
        (granted,) = _grants(address, 1)
        header = rifl_pb2.CallHeader(
            client_id=granted.client_id, token=granted.token, seq=1, attempt=2
        ).SerializeToString()
        return lambda: ((HEADER_KEY, header),)
    if side.client == "crowd":
        return _Crowd(_grants(address, _CROWD)).header
    return None


def _grants(address: str, count: int) -> list[Any]:
    with grpc.insecure_channel(address) as channel:
        grant: Any = channel.unary_unary(
            _GRANT,
            request_serializer=lease_pb.GrantRequest.SerializeToString,
            response_deserializer=lease_pb.GrantReply.FromString,
        )
        return [grant(lease_pb.GrantRequest(), timeout=10.0) for _ in range(count)]


class _Crowd:
    """Clients that call in turn, each acknowledging its call before the last."""

    def __init__(self, grants: list[Any]) -> None:
        self._clients = [(grant.client_id, grant.token) for grant in grants]
        self._turns = itertools.count(len(grants))

    def header(self) -> Any:
        """Return the metadata of the next call."""
        seq, at = divmod(next(self._turns), len(self._clients))
        client_id, token = self._clients[at]
        header = rifl_pb2.CallHeader(
            client_id=client_id,
            token=token,
            seq=seq,
            # Callers overtake each other: the one before may still run.
            first_incomplete=max(1, seq - 1),
            attempt=1,
        )
        return ((HEADER_KEY, header.SerializeToString()),)


def _options(side: Side) -> list[tuple[str, Any]]:
    if side.client != "retry":
        return []
    return [("grpc.enable_retries", 1), ("grpc.service_config", json.dumps(_RETRY_POLICY))]
