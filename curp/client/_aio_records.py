"""A stream of records to one witness, on an event loop (DESIGN §7)."""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from _rifl_ground.loops import tell_loop
from curp._core.pending_records import PendingRecords, QuickDuration, UnaskedAnswer
from curp.client._messages import RECORD_TIMEOUT_S
from curp.client._record import SILENT_S, Record, take_together, weakly
from curp.client._stubs import record_stub, records_stub
from curp.v1 import curp_pb2
from rifl._grpc.codes import NO_STREAM, SENT_SINGLY

_log = get_logger("curp.client")


class AioRecords:
    """As ``SyncRecords``: two tasks of the loop, of which one lives as long as the stream."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        leader: QuickDuration,
        lost: Callable[[AioRecords], None],
    ) -> None:
        """``leader``: how long its quick answers take.

        ``lost``: called after the channel lost its connection or found none.
        """
        self._open = records_stub(channel)
        self._lost = lost
        self._unary = _Unary(channel, weakly(self._channel_lost))
        self._leader = leader
        self._stream: _Stream | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def send(self, record: Record) -> bool:
        """Have a record sent soon; return whether anything was answered of late.

        UsageError: the channel is closed.
        """
        if self._unary.instead:
            self._unary.send(record)
            return True
        stream = self._stream
        if stream is None or stream.over:
            # For all callers, so in none's context.
            call = contextvars.Context().run(self._open)
            stream = self._stream = _Stream(call, PendingRecords(self._leader), self._unary)
            loop = asyncio.get_running_loop()
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = weakref.finalize(self, tell_loop, loop, call.cancel)
            self._finalizer.atexit = False
        stream.send(record)
        silent = stream.pending.oldest_s(time.monotonic()) > SILENT_S
        if silent:
            stream.close()
        return not silent

    def again(self) -> None:
        """Try a stream again: the witness may be another program by now."""
        self._unary.instead = False

    def close(self) -> None:
        """End the stream; what has no verdict will have none."""
        if self._stream is not None:
            self._stream.close()

    def _channel_lost(self) -> None:
        self._lost(self)


class _Tasks:
    """Kept, since a loop does not keep its tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Stream:
    """One life of the stream; held by its reading task, and holding nothing of the client's."""

    def __init__(self, call: Any, pending: PendingRecords[Record], unary: _Unary) -> None:
        self.pending = pending
        self.over = False
        self._call = call
        self._unary = unary
        self._waiting: deque[Record] = deque()
        self._writing = False
        self._tasks = _Tasks()
        self._tasks.start(self._read())

    def send(self, record: Record) -> None:
        """Leave a record for the writing task."""
        self._waiting.append(record)
        if not self._writing:
            self._writing = True
            self._tasks.start(self._write())

    def close(self) -> None:
        """End it."""
        self._call.cancel()

    async def _write(self) -> None:
        """Send what waits, until nothing does."""
        try:
            while self._waiting and not self.over:
                if wait_s := self.pending.wait_s(time.monotonic()):
                    await asyncio.sleep(wait_s)
                records, requests = take_together(self._waiting)
                if requests and not self.over:
                    first = self.pending.sent(records, time.monotonic())
                    message = curp_pb2.RecordsRequest(first=first, records=requests)
                    await self._call.write(message.SerializeToString())
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            # The reading task sees how it ended.
            pass
        finally:
            self._writing = False

    async def _read(self) -> None:
        call = self._call
        code = grpc.StatusCode.UNAVAILABLE
        try:
            while (reply := await call.read()) is not grpc.aio.EOF:
                verdicts = reply.verdicts
                records = self.pending.answered(reply.first, len(verdicts), time.monotonic())
                for record, verdict in zip(records, verdicts, strict=True):
                    record.end(verdict)
            code = await call.code()
        except (grpc.RpcError, grpc.aio.UsageError):
            code = await call.code()
        except UnaskedAnswer as error:
            _log.error("witness_out_of_line", error=str(error))
        finally:
            call.cancel()
            self._end(code)
        if code is grpc.StatusCode.UNAVAILABLE:
            self._unary.lost()

    def _end(self, code: grpc.StatusCode) -> None:
        self.over = True
        lost = [*self.pending.broken(), *self._waiting]
        self._waiting.clear()
        if code in NO_STREAM:
            self._unary.instead = True
        for record in lost:
            if code in SENT_SINGLY and not record.done:
                self._unary.send(record)
            else:
                record.end(None)


class _Unary:
    """Records one by one, if there is no stream."""

    def __init__(self, channel: grpc.aio.Channel, lost: Callable[[], None]) -> None:
        """``lost``: see ``AioRecords``."""
        self.lost = lost
        self._record = record_stub(channel)
        self._tasks = _Tasks()
        self.instead = False

    def send(self, record: Record) -> None:
        """Send a record."""
        if (request := record.request) is not None:
            self._tasks.start(self._send(record, request))

    async def _send(self, record: Record, request: bytes) -> None:
        verdict: int | None = None
        sent, lost = True, False
        try:
            reply = await self._record(request, timeout=RECORD_TIMEOUT_S)
            verdict = reply.verdict
        except grpc.RpcError as error:
            lost = error.code() is grpc.StatusCode.UNAVAILABLE
        except (grpc.aio.UsageError, ValueError):
            # The channel is closed.
            sent = False
        record.end(verdict, sent=sent)
        if lost:
            self.lost()
