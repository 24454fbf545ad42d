"""No finalizer takes a lock: a collection may come in the middle of anything (DESIGN §9)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from rifl._client.aio_streams import UnaryStreamCall, _StreamExchange
from rifl._client.sync_streams import StreamCall
from rifl.core._calling.invocation import Invocation
from tests.calls.services import Kinds, serving
from tests.helpers.waiting import until

UNARY, COUNT = "/t.Kinds/Unary", "/t.Kinds/Count"
CLIENT_THREADS = ("caller", "rifl-lease", "rifl-timers")
TRACED = ("/rifl/_client/", "/rifl/core/", "/lease_server/", "/threading.py", "/queue.py")


class EveryLine:
    """Has finalizers run once at every line of ours and of ``threading`` in a client's threads."""

    def __init__(self, leave: Callable[[], object]) -> None:
        self._leave = leave
        self._seen: set[tuple[str, str, int]] = set()

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        code, thread = frame.f_code, threading.current_thread().name
        if thread not in CLIENT_THREADS or not any(part in code.co_filename for part in TRACED):
            return None
        here = (thread, code.co_filename, frame.f_lineno)
        if event == "line" and here not in self._seen:
            self._seen.add(here)
            gc.disable()
            self._leave()
            for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
                found = finalizer.peek()
                if found and type(found[0]).__module__.startswith(("rifl", "curp", "lease_")):
                    found[1](*found[2])
            # What was left is collected at the next allocation.
            gc.enable()
        return self

    @property
    def lines(self) -> int:
        return len(self._seen)


@contextlib.contextmanager
def traced(every: EveryLine) -> Iterator[None]:
    """Trace this thread and those that start here, and collect at every allocation."""
    before = gc.get_threshold()
    threading.settrace(every)
    sys.settrace(every)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def in_time(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread; fail, with its stack, where it hangs."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="caller", daemon=True)
    thread.start()
    thread.join(60)
    if thread.is_alive():
        stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
        pytest.fail("it hangs:\n" + "".join(stack))
    if failed:
        raise failed[0]


@pytest.mark.parametrize("how", ["dropped", "collected"])
def test_a_stream_may_be_collected_at_any_line(how: str) -> None:
    """Also inside ``begin()``, under the session's lock, nothing hangs (DESIGN §4)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:

        def work() -> None:
            channel = rifl.connect(service.address)
            client = channel._client

            def leave() -> None:
                call = StreamCall(client, Invocation(COUNT, 0.0), lambda header, timeout: None)
                if how == "collected":
                    call.itself = call  # type: ignore[attr-defined]

            every = EveryLine(leave)
            with traced(every):
                unary = channel.unary_unary(UNARY)
                for _ in range(3):
                    unary(b"x", timeout=30)
                list(channel.unary_stream(COUNT)(b"2", timeout=30))
            assert every.lines > 300
            channel.close()

        in_time(work)
    assert kinds.effects == [b"x"] * 3 + [b"2"]


def test_an_aio_stream_may_be_collected_at_any_line() -> None:
    """The same on an event loop (DESIGN §4)."""
    kinds = Kinds()
    with serving("aio", kinds) as service:

        async def calls() -> None:
            channel = rifl.aio.connect(service.address)
            client = channel._client

            async def send(*_: Any) -> Any:
                raise AssertionError

            def leave() -> None:
                call = UnaryStreamCall(client, None)
                # Not begun: that is no finalizer's, and takes the lock.
                call._exchange = _StreamExchange(client, Invocation(COUNT, 0.0), send)

            every = EveryLine(leave)
            async with channel:
                with traced(every):
                    for _ in range(3):
                        await channel.unary_unary(UNARY)(b"x", timeout=30)
                    async for _ in channel.unary_stream(COUNT)(b"2", timeout=30):
                        pass
            assert every.lines > 300

        in_time(lambda: asyncio.run(calls()))
    assert kinds.effects == [b"x"] * 3 + [b"2"]


async def test_an_aio_stream_that_is_dropped_is_cancelled() -> None:
    """Nobody can read it any more: its call is set aside, the server hears of it (DESIGN §4)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        async with rifl.aio.connect(service.address) as channel:
            call = channel.unary_stream(COUNT)(b"100", timeout=30)
            assert await call.read() == b"1.0"
            exchange = call._exchange
            del call
            gc.collect()
            status = await asyncio.wait_for(exchange.finished(), 10)
            assert status.code() is grpc.StatusCode.CANCELLED
            assert len(channel._client.session._unresolved) == 1

            told: list[Any] = []
            kept = channel.unary_stream(COUNT)(b"1", timeout=30)
            kept.add_done_callback(lambda ended: told.append(ended.done()))
            exchange = kept._exchange
            del kept
            gc.collect()
            status = await asyncio.wait_for(exchange.finished(), 10)
            assert (status.code(), told) == (grpc.StatusCode.OK, [True])


def test_a_stream_that_is_dropped_is_set_aside_by_another_thread() -> None:
    """Its callbacks run, and its seq stays resolvable, as if it had been cancelled (DESIGN §4)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, rifl.connect(service.address) as channel:
        ended: list[str] = []
        call = channel.unary_stream(COUNT)(b"5", timeout=30)
        assert next(call) == b"1.0"
        call.add_callback(lambda: ended.append(threading.current_thread().name))
        inner = call._current
        del call
        # As gRPC cancels its own.
        with pytest.raises(grpc.FutureCancelledError):
            inner.result(60)
        until(lambda: ended, "the callback")
        assert ended == ["rifl-timers"]
        assert len(channel._client.session._unresolved) == 1
