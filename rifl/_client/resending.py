"""Request streams that can be sent again: read once, sent by each attempt (DESIGN §4)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import grpc

from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.refusals import Outcome
from rifl._client.errors import CallError, call_error, reentrant
from rifl.core._calling.stream_attempts import KeptRequests
from rifl.core._shared.codes import MAY_HAVE_RUN_CODE
from rifl.core._shared.stream_end import end_marker, is_end_marker
from rifl.v1 import rifl_pb2

# What is kept of a request stream so that it can be sent again.
RESEND_BYTES = 4 << 20


class _Kept:
    """What of a request stream was read so far, and whether it can be sent (again)."""

    def __init__(self, serialise: Callable[[Any], bytes] | None, limit: int) -> None:
        self._serialise = serialise
        self._kept = KeptRequests(limit)
        self._failed: BaseException | None = None

    def check(self) -> None:
        """Raise ``CallError`` where no attempt can be made (any more)."""
        if self._failed is not None:
            raise _unknown(
                grpc.StatusCode.UNKNOWN, f"Exception iterating requests: {self._failed!r}"
            ) from self._failed
        if not self._kept.resendable:
            raise _unknown(
                grpc.StatusCode.UNAVAILABLE,
                "the request stream is too long to be sent again: more than "
                f"{self._kept.limit} bytes",
            )

    def _add(self, message: Any) -> None:
        self._kept.add(message if self._serialise is None else self._serialise(message))

    def _refuse_marker(self, message: bytes, at: int) -> None:
        """Raise for a message that the server would take for the end of its stream."""
        if is_end_marker(message, at):
            self._failed = ValueError(
                f"message {at} of the request stream has the bytes of the marker that ends "
                "streams of deduplicated calls: the server would take the stream for a whole one"
            )
            raise self._failed


class Resending(_Kept):
    """For threads: gRPC reads each attempt's stream on one of its own."""

    def __init__(
        self,
        source: Iterable[Any],
        serialise: Callable[[Any], bytes] | None,
        limit: int = RESEND_BYTES,
    ) -> None:
        super().__init__(serialise, limit)
        self._source = source
        self._iterator: Iterator[Any] | None = None
        # A source may take as long as it likes for its next message.
        self._lock = OwnedLock(reentrant, math.inf)

    def attempt(self, *, marked: bool = False) -> Iterator[bytes]:
        """Yield the stream from its beginning; ``marked``: and the message that ends it."""
        at = 0
        while True:
            with self._lock:
                message = self._kept.take(at)
                if message is None:
                    if self._kept.ended:
                        break
                    self._read()
                    continue
            if marked:
                self._refuse_marker(message, at)
            at += 1
            yield message
        if marked:
            yield end_marker(at)

    def _read(self) -> None:
        try:
            if self._iterator is None:
                self._iterator = iter(self._source)
            self._add(next(self._iterator))
        except StopIteration:
            self._kept.end()
        except BaseException as error:
            self._failed = error
            raise


class AioResending(_Kept):
    """For an event loop; fed by an iterator, or by ``write``."""

    def __init__(
        self,
        source: AsyncIterable[Any] | Iterable[Any] | None,
        serialise: Callable[[Any], bytes] | None,
        limit: int = RESEND_BYTES,
    ) -> None:
        super().__init__(serialise, limit)
        self._source = source
        self._iterator: Any = None
        self._lock = asyncio.Lock()
        self._more = asyncio.Event()
        # How many messages some attempt has sent, and who waits for how many.
        self._sent = 0
        self._written = 0
        self._writers: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def ended(self) -> bool:
        """Whether no more can be written."""
        return self._kept.ended

    def write(self, message: Any) -> asyncio.Future[None]:
        """Append a message; what is returned is done when an attempt has sent it."""
        self._add(message)
        self._written += 1
        self._more.set()
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writers.append((self._written, sent))
        return sent

    def end(self) -> None:
        """Note that no more is written."""
        self._kept.end()
        self._more.set()

    def _sent_up_to(self, at: int) -> None:
        if at <= self._sent:
            return
        self._sent = at
        while self._writers and self._writers[0][0] <= at:
            _, sent = self._writers.pop(0)
            if not sent.done():
                sent.set_result(None)

    async def attempt(self, *, marked: bool = False) -> AsyncIterator[bytes]:
        """Yield the stream from its beginning; ``marked``: and the message that ends it."""
        at = 0
        while True:
            message = self._kept.take(at)
            if message is not None:
                if marked:
                    self._refuse_marker(message, at)
                at += 1
                yield message
                self._sent_up_to(at)
            elif self._kept.ended:
                break
            elif self._source is None:
                self._more.clear()
                await self._more.wait()
            else:
                async with self._lock:
                    # Another attempt may have read it meanwhile.
                    if not (self._kept.has(at) or self._kept.ended):
                        await self._read()
        if marked:
            yield end_marker(at)

    async def _read(self) -> None:
        source: Any = self._source
        try:
            is_async = hasattr(source, "__aiter__")
            if self._iterator is None:
                self._iterator = aiter(source) if is_async else iter(source)
            self._add(await anext(self._iterator) if is_async else next(self._iterator))
        except (StopIteration, StopAsyncIteration):
            self._kept.end()
        except BaseException as error:
            self._failed = error
            raise


def _unknown(code: grpc.StatusCode, details: str) -> CallError:
    """Build the error of a call of which an attempt was sent, and none can be again."""
    return call_error(
        grpc.StatusCode[MAY_HAVE_RUN_CODE],
        details,
        rpc_id=None,
        outcome=Outcome.UNKNOWN,
        original_code=code,
    )


def resumed(header: tuple[str, bytes] | None, received: int) -> tuple[str, bytes] | None:
    """Return a header that asks for the messages after the first ``received``."""
    if header is None or not received:
        return header
    # Messages that follow one another are one message to protobuf.
    more = rifl_pb2.CallHeader(received=received).SerializeToString()
    return header[0], header[1] + more
