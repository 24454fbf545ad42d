"""Response streams whose caller left, run to their handlers' end (DESIGN §4, §9)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import rifl
from rifl import testing
from tests.helpers.waiting import until

METHOD = "/t.Left/Count"


class Keeping(grpc.ServerInterceptor):
    """Takes one message, then keeps the rest in garbage, as an exception's frames may."""

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if details.method != METHOD:
            return handler

        def first_only(request: bytes, context: Any) -> Iterator[bytes]:
            rest = handler.unary_stream(request, context)
            yield next(rest)
            cycle = [rest]
            cycle.append(cycle)  # type: ignore[arg-type]

        return grpc.unary_stream_rpc_method_handler(first_only)


class Left:
    """A service whose streams are left; notes which thread runs what."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def count(self, request: bytes, context: Any) -> Iterator[bytes]:
        for at in range(3):
            self.threads.append(threading.current_thread())
            yield b"%d" % at

    def add_to(self, server: Any) -> None:
        handlers = {"Count": grpc.unary_stream_rpc_method_handler(self.count)}
        generic = grpc.method_handlers_generic_handler("t.Left", handlers)
        server.add_generic_rpc_handlers((generic,))


def test_a_collected_stream_runs_on_in_a_thread_of_its_own() -> None:
    """The thread that collects may hold the store's lock: nothing of it runs there (DESIGN §9)."""
    service = Left()
    with rifl.Deduplicator("memory:", methods={METHOD: "plain"}) as dedup:
        interceptors = [Keeping(), dedup.interceptor()]
        server = grpc.server(ThreadPoolExecutor(4), interceptors=interceptors)
        service.add_to(server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        gc.disable()
        try:
            with rifl.connect(f"127.0.0.1:{port}", session="s") as channel:
                with rifl.key("k"):
                    assert list(channel.unary_stream(METHOD)(b"", timeout=20)) == [b"0"]
                assert len(service.threads) == 1
                gc.collect()
                until(lambda: len(service.threads) == 3, "the rest of the stream")
                assert [thread.name for thread in service.threads[1:]] == ["rifl-run-on"] * 2
        finally:
            gc.enable()
            server.stop(None).wait()


def test_a_stream_that_is_left_runs_on_where_it_ran() -> None:
    """What a handler opened may belong to its thread: gRPC's, which dropped it (DESIGN §4)."""
    service = Left()
    goes_on = threading.Event()

    def count(request: bytes, context: Any) -> Iterator[bytes]:
        service.threads.append(threading.current_thread())
        yield b"0"
        goes_on.wait(20)
        service.threads.append(threading.current_thread())
        yield b"1"
        service.threads.append(threading.current_thread())

    service.count = count  # type: ignore[method-assign]
    with (
        testing.serve(service.add_to, methods={METHOD: "plain"}) as served,
        rifl.connect(served.address) as channel,
    ):
        call = channel.unary_stream(METHOD)(b"", timeout=20)
        assert next(call) == b"0"
        call.cancel()
        goes_on.set()
        until(lambda: len(service.threads) == 3, "the handler's end")
        assert len(set(service.threads)) == 1
