"""The ways of one call and of one message: the product's files and frames on each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import grpc

import rifl
import sharedlog
from benchmarks.house.imports import PRODUCT, ROOT

__all__ = ["way", "way_of_a_message"]

_METHOD = "/house.v1.House/Call"
_CALLS = 50


def way() -> Iterator[str]:
    """Make a new call over a real channel in ``memory:``; each file and its frames, in order.

    The second line counts what it took in all. Counted where Python counts frames: generators
    once for each resumption.
    """
    counter = _Counter()
    # Of every thread that starts from now on.
    threading.setprofile(counter.seen)
    sys.setprofile(counter.seen)
    dedup = rifl.Deduplicator("memory:")
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[dedup.interceptor()])
    try:
        server.add_generic_rpc_handlers((_Echo(),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with rifl.connect(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(_METHOD)
            for _ in range(_CALLS):
                call(b"warm", timeout=10)
            counter.counts = True
            call(b"request", timeout=10)
            counter.counts = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        server.stop(None).wait()
        dedup.close()
    yield from counter.told("one unary call")


def way_of_a_message() -> Iterator[str]:
    """A message in a ``memory:`` log: to a consumer's function, whose output a follower reads.

    Lines as of ``way``; the threads of the log and of the consumer are counted too.
    """
    counter = _Counter()
    threading.setprofile(counter.seen)
    sys.setprofile(counter.seen)
    try:
        with sharedlog.create("memory:") as log:
            log.stream("in")
            log.stream("out")
            consumer = sharedlog.Consumer(log, name="house", streams=["in"], store="log")
            consumer.on("in")(lambda message, effects: effects.publish("out", message.value))
            running = threading.Thread(target=consumer.run)
            running.start()
            with log.follow("out") as outputs:
                for counter.counts in (*(False,) * _CALLS, True):
                    log.publish("in", b"message")
                    next(outputs)
            counter.counts = False
            consumer.close()
            running.join()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    yield from counter.told("one message, through a consumer's function")


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        if details.method != _METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


class _Counter:
    """Counts the frames of the product's files while ``counts``, by file."""

    def __init__(self) -> None:
        self.counts = False
        self.frames: dict[str, int] = {}
        self._places = tuple(f"{ROOT}/{package}/" for package in PRODUCT)

    def told(self, what: str) -> Iterator[str]:
        """Yield how much there was in all, then each file's frames."""
        frames = self.frames
        yield f"{what}: {len(frames)} files, {sum(frames.values())} frames"
        yield from (f"  {count:4} {name}" for name, count in frames.items())

    def seen(self, frame: FrameType, event: str, _: Any) -> None:
        """Take what the interpreter tells a profiler."""
        if self.counts and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(self._places):
                short = name.removeprefix(f"{ROOT}/")
                self.frames[short] = self.frames.get(short, 0) + 1
