"""A handler that was cancelled half-way has not answered (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl._wire.envelope import encode_batch, parse_reply
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, until

KINDS = {"/test.Cut/Plain": "plain", "/test.Cut/Idempotent": "idempotent"}


class Cut:
    """Coroutine handlers that wait to be cancelled in their first run."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.runs: list[bytes] = []

    async def act(self, request: bytes, context: Any) -> bytes:
        """Hang the first time, answer after that."""
        self.runs.append(request)
        if self.runs.count(request) == 1:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.append(task)
            await asyncio.Event().wait()
        return b"done"

    def cancel(self, loop: Any, count: int) -> None:
        """Cancel the handlers that wait, as an event loop that ends does."""
        until(lambda: len(self.tasks) >= count, "the handlers run")
        for task in self.tasks:
            loop.loop.call_soon_threadsafe(task.cancel)


@pytest.fixture
def cut(tmp_path: Path):
    """A server on an event loop with such handlers, and its caller."""
    cut = Cut()
    handlers = [generic("test.Cut", {"Plain": cut.act, "Idempotent": cut.act})]
    with (
        rifl.Deduplicator(f"sqlite:///{tmp_path}/s.db", methods=KINDS) as dedup,
        serve("aio", handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        yield cut, served, client


def test_a_cancelled_handler_is_no_final_answer(cut: Any) -> None:
    """Plain: a lasting unknown; idempotent: it runs again (§4)."""
    handler, served, client = cut
    calls = [client.future(method, method.encode(), seq) for seq, method in enumerate(KINDS, 1)]
    handler.cancel(served.loop, 2)
    for call in calls:
        with contextlib.suppress(grpc.RpcError):
            call.result()
        assert call.code() is not grpc.StatusCode.OK
    plain = client.call("/test.Cut/Plain", b"/test.Cut/Plain", 1, attempt=2)
    assert plain.refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")
    idempotent = client.call("/test.Cut/Idempotent", b"/test.Cut/Idempotent", 2, attempt=2)
    assert (idempotent.response, idempotent.outcome) == (b"done", "executed")
    assert sorted(handler.runs) == [b"/test.Cut/Idempotent"] * 2 + [b"/test.Cut/Plain"]


def test_nor_is_a_cancelled_item_of_a_batch(cut: Any) -> None:
    """The same for the handlers of a batch (§4)."""
    handler, served, client = cut
    metadata = (("rifl-bin", client.header(None)), ("rifl-batch", "1"))
    call = client.channel.unary_unary("/test.Cut/Plain").future(
        encode_batch([b"a"], [], [7]), DEADLINE_S, metadata
    )
    handler.cancel(served.loop, 1)
    (item,) = parse_reply(call.result(), 1).items()
    assert item.record.reason == "OUTCOME_UNKNOWN"
    again = client.call("/test.Cut/Plain", b"a", 7, attempt=2)
    assert again.refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")


@pytest.mark.parametrize("mode", ["hang", "interrupt"])
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_ctrl_c_answers_no_call(tmp_path: Path, declared: str, mode: str) -> None:
    """What Ctrl-C broke off in a real process is unknown, or runs again, in the next (§4)."""
    address = f"127.0.0.1:{free_port()}"
    arguments = (f"sqlite:///{tmp_path}/s.db", address, declared)
    log = tmp_path / "log"
    with started("tests.server.interrupted_server", *arguments, mode, log=log) as process:
        assert process.line() == "serves"
        with RawClient(address) as client:
            assert client.call("/test.Cut/Act", b"first", 1).ok
            call = client.future("/test.Cut/Act", b"a", 2)
            assert process.line() == "runs"
            if mode == "hang":
                os.kill(process.pid, signal.SIGINT)
            process.wait()
            assert not read(call).ok
            again = (client.client_id, client.token)
    with (
        started("tests.server.interrupted_server", *arguments, "answer", log=log) as process,
        RawClient(address, grant=False) as client,
    ):
        assert process.line() == "serves"
        client.client_id, client.token = again
        reply = client.call("/test.Cut/Act", b"a", 2, attempt=2)
        if declared == "plain":
            assert reply.refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")
        else:
            assert reply.response == b"done"


async def leave_cancelled(request: bytes, context: Any) -> bytes:
    """Cancel the own task, await nothing more, and answer or raise."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if request == b"raises":
        raise LookupError
    return b"done"


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/s.db"])
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_a_cancellation_that_a_handler_never_awaited_is_not_the_call_s(
    tmp_path: Path, store: str, declared: str
) -> None:
    """It has swallowed it: its answer is recorded and sent, and no call is left running (§4)."""
    with (
        rifl.Deduplicator(store.format(tmp_path), default=declared) as dedup,
        serve("aio", [generic("test.Cut", {"Leave": leave_cancelled})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        assert client.call("/test.Cut/Leave", b"a", 1).response == b"done"
        assert client.call("/test.Cut/Leave", b"a", 1, attempt=2).outcome == "replayed"
        raised = client.call("/test.Cut/Leave", b"raises", 2)
        assert (raised.code, raised.outcome) == (grpc.StatusCode.UNKNOWN, "executed")
        metadata = (("rifl-bin", client.header(None)), ("rifl-batch", "1"))
        body = encode_batch([b"b", b"raises", b"c"], [], [7, 8, 9])
        batch: Any = client.channel.unary_unary("/test.Cut/Leave")
        reply = batch(body, DEADLINE_S, metadata)
        records = [item.record for item in parse_reply(reply, 3).items()]
        assert [record.response for record in records] == [b"done", None, b"done"]
        assert not {record.reason for record in records} - {""}


def test_nor_is_one_of_a_stream_s_handler(tmp_path: Path) -> None:
    """Streams of either side end likewise (§4)."""

    async def collect(requests: Any, context: Any) -> bytes:
        return await leave_cancelled(b"".join([part async for part in requests]), context)

    async def count(request: bytes, context: Any) -> Any:
        yield b"one"
        yield b"two"
        await leave_cancelled(request, context)

    rpcs: dict[str, Any] = {
        "Collect": grpc.stream_unary_rpc_method_handler(collect),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    methods = {f"/test.Cut/{name}": "plain" for name in rpcs}
    handlers = [grpc.method_handlers_generic_handler("test.Cut", rpcs)]
    with (
        rifl.Deduplicator(f"sqlite:///{tmp_path}/s.db", methods=methods) as dedup,
        serve("aio", handlers, dedup=dedup) as served,
        rifl.connect(served.address) as channel,
    ):
        collected = channel.stream_unary("/test.Cut/Collect")
        assert collected(iter([b"a"]), timeout=DEADLINE_S) == b"done"
        counted = channel.unary_stream("/test.Cut/Count")(b"a", timeout=DEADLINE_S)
        assert list(counted) == [b"one", b"two"]


_COLLECTED = """
import asyncio, os
import grpc, grpc.aio
import rifl, rifl.aio

arrived = 0

async def hang():
    global arrived
    arrived += 1
    await asyncio.Event().wait()

async def unary(request, context):
    await hang()

async def count(request, context):
    await hang()
    yield b""

async def send(call):
    await call

async def begin():
    dedup = rifl.Deduplicator("memory:", default="plain", methods={"/test.Cut/Count": "plain"})
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    dedup.add_to_server(server)
    forms = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Count": grpc.unary_stream_rpc_method_handler(count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Cut", forms),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = rifl.aio.connect(f"127.0.0.1:{port}")
    calls = [
        channel.unary_unary("/test.Cut/Unary")(b""),
        channel.unary_stream("/test.Cut/Count")(b"").read(),
    ]
    tasks = [asyncio.create_task(send(call)) for call in calls]
    while arrived < len(calls):
        await asyncio.sleep(0.01)
    return dedup, server, channel, tasks

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(begin())
closed = 0
for task in asyncio.all_tasks(loop):
    if task.get_coro().__name__ in ("execute", "carry_out"):
        if CANCELLED:
            task.cancel()
        task.get_coro().close()
        closed += 1
print(closed, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_handler_that_a_collector_closes_is_closed(cancelled: bool) -> None:
    """Its loop was stopped and left: there is no current task, and nothing can be awaited."""
    program = _COLLECTED.replace("CANCELLED", str(cancelled))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout == "2\n", done.stderr
