"""Stopping, secrets and health of a running server (DESIGN §4, §5)."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import rifl
from lease_server import NotYours
from rifl._stores import Settlement, StoreLocked, settle_unknown
from rifl._stores.opening import open_inspection
from rifl.v1 import rifl_pb2
from tests.echo import METHOD, SERVICE, aio_served, make_aio_server, make_server, served
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]
_NOT_RUN = Settlement(False, "ops", "its process seems to be gone")
_Status = health_pb2.HealthCheckResponse

_SERVER = """
import asyncio, logging, sys, threading, time
import grpc, rifl
from tests.echo import make_aio_server, make_server

logging.basicConfig(stream=sys.stderr, level=logging.INFO)

go_on = threading.Event()

def slow(request, context):
    if request == b"slow":
        print("begun", flush=True)
        go_on.wait(20)
    if request == b"for ever":
        print("begun", flush=True)
        while True:
            time.sleep(60)
    return request

def serve():
    dedup = rifl.Deduplicator(sys.argv[1])
    server, target = make_server(dedup, slow)
    server.start()
    print(target, flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), go_on.set()), daemon=True).start()
    return rifl.serve_until_signal(server, dedup, float(sys.argv[2]))

async def serve_aio():
    async def never(request, context):
        print("begun", flush=True)
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    dedup = rifl.Deduplicator(sys.argv[1])
    server, target = make_aio_server(dedup, never)
    await server.start()
    print(target, flush=True)
    return await rifl.aio.serve_until_signal(server, dedup, float(sys.argv[2]))

async def serve_by_hand():
    # The loop ends with a handler running, whose thread goes on.
    begun = asyncio.Event()

    def act(request):
        go_on.wait(20)
        print("effect", flush=True)
        return request

    async def threaded(request, context):
        begun.set()
        return await asyncio.to_thread(act, request)

    dedup = rifl.Deduplicator(sys.argv[1], default="idempotent")
    server, target = make_aio_server(dedup, threaded)
    await server.start()
    print(target, flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), go_on.set()), daemon=True).start()
    await begun.wait()
    await server.stop(0)
    await dedup.aclose(0)
    print("closed", flush=True)

if __name__ == "__main__":
    hands = {"aio": serve_aio, "by hand": serve_by_hand}
    sys.exit(serve() if sys.argv[3] == "sync" else asyncio.run(hands[sys.argv[3]]()))
"""


def _start(
    url: str, grace: float, kind: str = "sync", log: Any = None
) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, url, str(grace), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


class _Killed:
    """Ends a process with its test, so that a failure is not waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def close(self) -> None:
        """Kill it unless it has ended."""
        if self.process.poll() is None:
            self.process.kill()


def _refused_as_draining(method: Any) -> None:
    """Call until the server says that it drains: the signal takes a moment to arrive."""
    refused: Any = None
    while refused is None:
        try:
            method(b"new", timeout=10)
        except grpc.RpcError as error:
            refused = error
    assert refused.reason == "DRAINING"
    assert refused.outcome is rifl.Outcome.UNKNOWN


def test_a_signal_drains_and_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM refuses new calls as DRAINING, finishes and records the running one (DESIGN §4)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    process, target = _start(url, 20)
    with (
        process,
        closing(_Killed(process)),
        rifl.connect(target, retry=rifl.RetryPolicy(max_attempts=1)) as channel,
    ):
        assert process.stdout is not None
        method = channel.unary_unary(METHOD)
        future = method.future(b"slow", timeout=20)
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        _refused_as_draining(method)
        assert process.poll() is None, "it waits for the running call"
        process.communicate("go on\n", timeout=20)
        assert future.result() == b"slow"
        assert process.returncode == 0
    with closing(open_inspection(url)) as store:
        assert store.summary().owner is None
        assert store.summary().intents == 0
        assert store.record(future.rpc_id).response == b"slow"  # type: ignore[union-attr, arg-type]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """Signalled twice it stops at once, and the call's intent stays to tell (DESIGN §4)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    process, target = _start(url, 600)
    with (
        process,
        closing(_Killed(process)),
        rifl.connect(target, retry=rifl.RetryPolicy(max_attempts=1)) as channel,
    ):
        assert process.stdout is not None
        method = channel.unary_unary(METHOD)
        future = method.future(b"slow", timeout=20)
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        _refused_as_draining(method)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as refused:
            future.result()
        assert refused.value.outcome is rifl.Outcome.UNKNOWN  # type: ignore[attr-defined]
        # Its handler has not ended, and does not keep the process alive.
        assert process.wait(30) == 1


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_handler_that_never_ends_ends_with_its_process(tmp_path: Path, kind: str) -> None:
    """After the grace the process ends, and till then nobody takes its store (DESIGN §6)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    with (tmp_path / "log").open("wb") as log:
        process, target = _start(url, 0.5, kind, log)
        with (
            process,
            closing(_Killed(process)),
            rifl.connect(target, retry=rifl.RetryPolicy(max_attempts=1)) as channel,
        ):
            assert process.stdout is not None
            future = channel.unary_unary(METHOD).future(b"for ever", timeout=30)
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            refused = 0
            while process.poll() is None:
                try:
                    settle_unknown(url, [future.rpc_id], _NOT_RUN)  # type: ignore[arg-type, list-item]
                except StoreLocked:
                    refused += 1
                else:
                    # Its lock is gone: so is all that it could do.
                    assert process.wait(30) == 1
            assert refused
            assert process.wait(30) == 1
            assert future.exception() is not None
    process, target = _start(url, 0.5)
    with process, closing(_Killed(process)), rifl.connect(target) as channel:
        assert channel.unary_unary(METHOD)(b"next", timeout=20) == b"next"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "ended_with_calls_running" in (tmp_path / "log").read_text()
    assert "store_stopped" not in (tmp_path / "log").read_text()


def test_threads_of_cancelled_handlers_keep_the_store(tmp_path: Path) -> None:
    """The loop's end cancels a handler, and its thread goes on: so does the lock (DESIGN §6)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    with (tmp_path / "log").open("wb") as log:
        process, target = _start(url, 0, "by hand", log)
        with process, closing(_Killed(process)), rifl.connect(target) as channel:
            assert process.stdout is not None
            assert process.stdin is not None
            future = channel.unary_unary(METHOD).future(b"x", timeout=20)
            assert process.stdout.readline() == "closed\n"
            until(lambda: "kept_until_exit" in (tmp_path / "log").read_text(), "it was cancelled")
            with pytest.raises(StoreLocked):
                rifl.Deduplicator(url, lock_timeout_s=0.05)
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.stdout.readline() == "effect\n"
            assert process.wait(30) == 0
            future.cancel()
    rifl.Deduplicator(url).close()


def test_a_suspended_process_has_its_store(tmp_path: Path) -> None:
    """SIGTERM, then SIGSTOP: no other process starts before SIGKILL (DESIGN §6)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    process, target = _start(url, 600)
    once = rifl.RetryPolicy(max_attempts=1)
    with process, closing(_Killed(process)), rifl.connect(target, retry=once) as channel:
        assert process.stdout is not None
        method = channel.unary_unary(METHOD)
        future = method.future(b"for ever", timeout=20)
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        _refused_as_draining(method)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreLocked):
            rifl.Deduplicator(url, lock_timeout_s=0.05)
        with pytest.raises(StoreLocked):
            settle_unknown(url, [future.rpc_id], _NOT_RUN)  # type: ignore[arg-type, list-item]
        process.kill()
        process.wait(30)
        rifl.Deduplicator(url).close()


async def test_the_process_goes_on_where_that_was_asked_for(tmp_path: Path) -> None:
    """``end_process=False`` returns what is left, with the store kept for it (DESIGN §6)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: bytes, context: Any) -> bytes:
        begun.set()
        await go_on.wait()
        return request

    dedup = rifl.Deduplicator(url, drain_s=0)
    server, target = make_aio_server(dedup, slow)
    await server.start()
    serving = asyncio.ensure_future(
        rifl.aio.serve_until_signal(server, dedup, 0, end_process=False)
    )
    async with rifl.aio.connect(target) as channel:
        call = channel.unary_unary(METHOD)(b"slow", timeout=20)
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 1
        with pytest.raises(StoreLocked):
            rifl.Deduplicator(url, lock_timeout_s=0.05)
        go_on.set()
        await dedup.aclose(20)
        call.cancel()
    rifl.Deduplicator(url).close()


async def test_an_aio_server_drains_too(tmp_path: Path) -> None:
    """``rifl.aio.serve_until_signal`` lets the loop's running call end first (DESIGN §4)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: bytes, context: Any) -> bytes:
        begun.set()
        await go_on.wait()
        return request

    dedup = rifl.Deduplicator(url)
    server, target = make_aio_server(dedup, slow)
    await server.start()
    serving = asyncio.ensure_future(rifl.aio.serve_until_signal(server, dedup, 20))
    async with rifl.aio.connect(target) as channel:
        call = channel.unary_unary(METHOD)(b"slow", timeout=20)
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        while dedup.statistics().running and not serving.done():
            go_on.set()
            await asyncio.wait((serving,), timeout=0.01)
        assert await call == b"slow"
        assert await serving == 0


_FORKING = """
import asyncio, os, signal, sys, threading
import rifl
from _rifl_ground import signals
from tests.helpers.waiting import until

class Server:
    def stop(self, grace):
        stopped = threading.Event()
        stopped.set()
        return stopped

class AioServer:
    async def stop(self, grace):
        pass

dedup = rifl.Deduplicator("memory:")
stopping = threading.Event()
drain = dedup.drain
dedup.drain = lambda: (print("draining", stopping.is_set(), flush=True), drain())

def forks(loop):
    until(lambda: signal.SIGINT in signals._in_children, "it serves")
    child = os.fork()
    if child == 0:
        threading.Event().wait(60)
        os._exit(0)
    # At once: it may not have begun to run.
    os.kill(child, signal.SIGTERM)
    print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    for _ in range(5 if loop else 0):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
    stopping.set()
    os.kill(os.getpid(), signal.SIGTERM)

async def serve_aio():
    threading.Thread(target=forks, args=(asyncio.get_running_loop(),), daemon=True).start()
    return await rifl.aio.serve_until_signal(AioServer(), dedup)

if sys.argv[1] == "aio":
    sys.exit(asyncio.run(serve_aio()))
threading.Thread(target=forks, args=(None,), daemon=True).start()
sys.exit(rifl.serve_until_signal(Server(), dedup))
"""


_AT_ANY_STEP = """
import signal, sys, threading
import rifl
from _rifl_ground import signals
from rifl._server import shutdown

class Server:
    def stop(self, grace):
        stopped = threading.Event()
        stopped.set()
        return stopped

def at(step):
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if signal.SIGINT in signals._in_children and seen < step:
            seen += event == "line"
            if seen == step:
                signal.raise_signal(signal.SIGTERM)
        return trace

    return trace

shutdown._LOOK_S = 0.01
for step in range(1, 40):
    dedup = rifl.Deduplicator("memory:")
    sys.settrace(at(step))
    left = rifl.serve_until_signal(Server(), dedup)
    sys.settrace(None)
    print(step, left, flush=True)
"""


def test_a_signal_may_come_between_any_two_steps() -> None:
    """Its function runs in the thread that waits for it, which held the lock of an event then, and
    waited for itself without end (DESIGN §4)."""
    ran = subprocess.run(
        [sys.executable, "-c", _AT_ANY_STEP],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.splitlines() == [f"{step} 0" for step in range(1, 40)]


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_forked_child_has_no_server_to_stop(kind: str) -> None:
    """A signal ends the child of a process that serves, and never stops its parent: a child that
    ignored it were waited for without end, and the loop's socket is its parent's (DESIGN §4)."""
    ran = subprocess.run(
        [sys.executable, "-c", _FORKING, kind],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0
    assert list(dict.fromkeys(ran.stdout.splitlines())) == ["ended by -15", "draining True"]


async def test_a_signal_stops_all_servers_of_a_loop() -> None:
    """A loop has room for one function a signal: the last server had it alone (DESIGN §4)."""

    async def serve() -> None:
        dedup = rifl.Deduplicator("memory:")
        server, _ = make_aio_server(dedup, lambda request, _: request)
        await server.start()
        serving.append(asyncio.ensure_future(rifl.aio.serve_until_signal(server, dedup, 20)))

    before = signal.getsignal(signal.SIGTERM)
    serving: list[asyncio.Future[int]] = []
    await serve()
    await serve()
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(asyncio.gather(*serving), 20) == [0, 0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_tokens_outlive_a_rotation_by_a_term() -> None:
    """An old token is valid for a term after a rotation; renewals hand out new ones (§5)."""
    now = [1000.0]
    with rifl.Deduplicator("memory:", term_s=60.0, clock=lambda: now[0]) as dedup:
        authority = dedup._authority
        client_id, old, _ = authority.grant()
        dedup.rotate_secret()
        assert authority.heartbeat(client_id, old) == b"", "every server has to know it first"
        now[0] += 31
        authority.expire()
        fresh = authority.heartbeat(client_id, old)
        assert fresh
        assert fresh != old
        assert authority.grant().token[:4] == fresh[:4]
        now[0] += 59
        authority.expire()
        authority.heartbeat(client_id, fresh)
        authority.check(client_id, old)
        now[0] += 60
        authority.expire()
        authority.check(client_id, fresh)
        with pytest.raises(NotYours):
            authority.check(client_id, old)


def test_a_busy_client_gets_the_new_token() -> None:
    """A client that never idles is handed the new token, which outlives the old one (§5)."""
    # The client counts its term by the machine's clock, and the server by one that is told.
    now = [1000.0]
    with (
        rifl.Deduplicator("memory:", term_s=0.3, clock=lambda: now[0]) as dedup,
        served(dedup) as target,
        rifl.connect(target) as channel,
    ):
        method = channel.unary_unary(METHOD)
        method(b"first", timeout=10)
        lease = channel._client.session.lease
        assert lease is not None
        old = lease.token
        dedup.rotate_secret()
        now[0] += 0.16
        dedup._authority.expire()
        while lease.token == old:
            method(b"busy", timeout=10)
        while dedup._authority.still_signed(old):
            now[0] += 0.1
            dedup._authority.expire()
            method(b"busy", timeout=10)
        assert method(b"last", timeout=10) == b"last"
        assert channel._client.session.lease is lease, "its id stays"


def test_a_retired_secrets_token_is_refused_even_if_it_was_known() -> None:
    """A server that remembers a token forgets it with its secret (DESIGN §3, NOT_YOURS)."""
    now = [1000.0]
    with (
        rifl.Deduplicator("memory:", term_s=60.0, clock=lambda: now[0]) as dedup,
        served(dedup) as target,
        grpc.insecure_channel(target) as channel,
    ):
        client_id, token, _ = dedup._authority.grant()
        method: Any = channel.unary_unary(METHOD)

        def call(seq: int) -> bytes:
            header = rifl_pb2.CallHeader(
                client_id=client_id, token=token, seq=seq, attempt=1, first_incomplete=seq
            )
            metadata = [("rifl-bin", header.SerializeToString())]
            answer: bytes = method(b"x", metadata=metadata, timeout=10)
            return answer

        assert call(1) == b"x"
        dedup.rotate_secret()
        for _ in range(5):
            now[0] += 30
            dedup._authority.renew(client_id)
            dedup._authority.expire()
        with pytest.raises(grpc.RpcError) as refused:
            call(2)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def _health(channel: grpc.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    status: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
    return status


def test_health_follows_draining() -> None:
    """Health is SERVING until the server drains, for it and each service named."""
    with rifl.Deduplicator("memory:") as dedup:
        server, target = make_server(dedup)
        dedup.add_health(server, SERVICE)
        server.start()
        with grpc.insecure_channel(target) as channel:
            assert _health(channel) == _Status.SERVING
            assert _health(channel, SERVICE) == _Status.SERVING
            dedup.drain()
            assert _health(channel) == _Status.NOT_SERVING
            assert _health(channel, SERVICE) == _Status.NOT_SERVING
        server.stop(None).wait()


@pytest.mark.parametrize("order", ["before", "after", "twice"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_another_health_service_beside_rifls_is_refused(kind: str, order: str) -> None:
    """gRPC would ask the first one alone; ``add_health`` is named (docs/how-to/operations.md)."""
    from grpc_health.v1 import health

    servicer: Any = health.aio.HealthServicer() if kind == "aio" else health.HealthServicer()
    async with rifl.Deduplicator("memory:") as dedup:
        server: Any
        if kind == "aio":
            server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        else:
            server = grpc.server(ThreadPoolExecutor(2), interceptors=[dedup.interceptor()])
        dedup.add_to_server(server)

        def own() -> None:
            health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

        def ours() -> None:
            dedup.add_health(server)

        first, second = {"before": (own, ours), "after": (ours, own), "twice": (ours, ours)}[order]
        first()
        with pytest.raises(ValueError, match="add_health"):
            second()
        await server.stop(None) if kind == "aio" else server.stop(None)


def test_health_follows_the_store(tmp_path: Path) -> None:
    """A full disk makes health NOT_SERVING until writes work again (DESIGN §3)."""
    told: list[Any] = []
    changed = threading.Condition()

    class Telling(rifl.Observer):
        def serving(self, refusal: Any) -> None:
            with changed:
                told.append(refusal)
                changed.notify()

    with rifl.Deduplicator(f"sqlite:///{tmp_path / 'rifl.db'}", observer=Telling()) as dedup:
        server, target = make_server(dedup)
        dedup.add_health(server)
        server.start()
        once = rifl.RetryPolicy(max_attempts=1)
        with grpc.insecure_channel(target) as plain, rifl.connect(target, retry=once) as channel:
            method = channel.unary_unary(METHOD)
            method(b"fits", timeout=10)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            try:
                with pytest.raises(grpc.RpcError) as refused:
                    method(b"x" * 100_000, timeout=10)
                assert refused.value.reason == "STORE_UNAVAILABLE"  # type: ignore[attr-defined]
                with changed:
                    assert changed.wait_for(lambda: told, 20)
                assert _health(plain) == _Status.NOT_SERVING
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                signal.signal(signal.SIGXFSZ, ignored)
            with changed:
                assert changed.wait_for(lambda: told[-1] is None, 20)
            assert _health(plain) == _Status.SERVING
            assert method(b"again", timeout=10) == b"again"
        server.stop(None).wait()


async def test_health_and_reflection_on_an_aio_server() -> None:
    """Both are served on an event loop too, our services among the listed ones."""
    async with rifl.Deduplicator("memory:") as dedup:
        server, target = make_aio_server(dedup)
        dedup.add_health(server)
        dedup.add_reflection(server, SERVICE)
        await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            assert (await stub.Check(request, timeout=10)).status == _Status.SERVING
            dedup.drain()
            watch = stub.Watch(request, timeout=10)
            async for update in watch:
                if update.status == _Status.NOT_SERVING:
                    break
            watch.cancel()
            listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="*")]), timeout=10
            )
            reply = await listing.read()
            names = {service.name for service in reply.list_services_response.service}
        await server.stop(None)
    assert {SERVICE, "lease_server.v1.LeaseServer", "rifl.v1.Outcomes"} <= names


def test_extras_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages the error says what to install."""
    monkeypatch.setitem(sys.modules, "grpc_health.v1", None)
    monkeypatch.setitem(sys.modules, "grpc_reflection.v1alpha", None)
    with rifl.Deduplicator("memory:") as dedup:
        server, _ = make_server(dedup)
        with pytest.raises(ImportError, match=r"rifl-grpc\[health\]"):
            dedup.add_health(server)
        with pytest.raises(ImportError, match=r"rifl-grpc\[health\]"):
            dedup.add_reflection(server)


async def test_statistics_of_an_idle_server_are_zero() -> None:
    """Nothing is held before the first call, and nothing after the last (DESIGN §5)."""
    async with rifl.Deduplicator("memory:") as dedup, aio_served(dedup) as target:
        assert dedup.statistics() == (0, 0, 0, 0, 0, 0, 0, 0, None, 0.0, True)
        async with rifl.aio.connect(target) as channel:
            await channel.unary_unary(METHOD)(b"x", timeout=10)
            assert dedup.statistics() == (1, 1, 1, 0, 0, 0, 0, 0, None, 0.0, True)
