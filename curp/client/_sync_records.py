"""A stream of records to one witness, for threads (DESIGN §7)."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock
from curp._core.pending_records import PendingRecords, QuickDuration, UnaskedAnswer
from curp.client._messages import RECORD_TIMEOUT_S
from curp.client._record import SILENT_S, Record, take_together, weakly
from curp.client._stubs import record_stub, records_stub, watch_stub
from curp.v1 import curp_pb2
from rifl._grpc.codes import NO_STREAM, SENT_SINGLY

_log = get_logger("curp.client")

_Queue = queue.SimpleQueue[Record | None]


class SyncRecords:
    """Opened when the first record is sent, and again after it ended. Any thread.

    Two threads while it is open: gRPC's, which sends what callers left, and one that reads
    verdicts. Both end with the stream, at ``close``, and when this is dropped: they do not
    hold it. Callers never wait here. A witness that has no streams, or no more of them, is sent
    each record by itself, until ``again``.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        leader: QuickDuration,
        lock: OwnedLock,
        lost: Callable[[SyncRecords], None],
    ) -> None:
        """``leader``: how long its quick answers take; ``lock``: of the path.

        ``lost``: called without a lock, by a thread that may block, after the channel lost its
        connection or found none.
        """
        self._open = records_stub(channel)
        self._lost = lost
        self._unary = _Unary(channel, weakly(self._channel_lost))
        self._leader = leader
        self._lock = lock
        self._stream: _Stream | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def send(self, record: Record) -> bool:
        """Have a record sent soon; return whether anything was answered of late.

        ValueError: the channel is closed.
        """
        if self._unary.instead:
            self._unary.send(record)
            return True
        stream = self._stream
        if stream is None or stream.over:
            stream = self._begin()
        stream.send(record)
        silent = stream.pending.oldest_s(time.monotonic()) > SILENT_S
        if silent:
            stream.close()
        return not silent

    def again(self) -> None:
        """Try a stream again: the witness may be another program by now."""
        self._unary.stay_awake()
        self._unary.instead = False

    def close(self) -> None:
        """End the stream; what has no verdict will have none."""
        if (stream := self._stream) is not None:
            stream.close()

    def _channel_lost(self) -> None:
        self._lost(self)

    def _begin(self) -> _Stream:
        with self._lock:
            stream = self._stream
            if stream is None or stream.over:
                stream = _Stream(PendingRecords(self._leader), self._unary)
                # For all callers, so in none's context.
                contextvars.Context().run(stream.begin, self._open)
                if self._finalizer is not None:
                    self._finalizer.detach()
                # A SimpleQueue takes no lock that the collected thread may hold.
                self._finalizer = weakref.finalize(self, stream.queue.put, None)
                self._finalizer.atexit = False
                self._stream = stream
        return stream


class _Stream:
    """One life of the stream; held by its two threads, and holding nothing of the client's."""

    def __init__(self, pending: PendingRecords[Record], unary: _Unary) -> None:
        self.pending = pending
        self.over = False
        # What callers left; None ends the stream. A SimpleQueue, which finalizers may put into
        # in the middle of anything.
        self.queue: _Queue = queue.SimpleQueue()
        # Records that gRPC's thread has taken, and not sent yet.
        self._waiting: deque[Record] = deque()
        self._closing = False
        self._unary = unary
        self._call: Any = None
        self._code = grpc.StatusCode.UNAVAILABLE

    def begin(self, opened: Any) -> None:
        """Open it. ValueError: the channel is closed."""
        call = self._call = opened(self)
        try:
            threading.Thread(target=self._read, name="curp-records", daemon=True).start()
        except RuntimeError:
            # No more threads here: records go one by one.
            self._end(grpc.StatusCode.RESOURCE_EXHAUSTED)
            call.cancel()

    def send(self, record: Record) -> None:
        """Leave a record for gRPC's thread."""
        self.queue.put(record)
        if self.over:
            self._lose()

    def close(self) -> None:
        """End it."""
        self.queue.put(None)
        self._cancel()

    def _cancel(self) -> None:
        # A witness that hangs would leave it open.
        if (call := self._call) is not None:
            call.cancel()

    # What gRPC's thread asks for: an iterator of messages.

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> bytes:
        waiting = self._waiting
        requests: list[bytes] = []
        while not requests:
            if not waiting:
                if self._closing:
                    self._cancel()
                    raise StopIteration
                self._gather(self.queue.get())
            records, requests = take_together(waiting)
        first = self.pending.sent(records, time.monotonic())
        if self.over:
            self._lose()
            raise StopIteration
        message = curp_pb2.RecordsRequest(first=first, records=requests)
        return message.SerializeToString()

    def _gather(self, record: Record | None) -> None:
        """Take what callers left, after a while in which more may come."""
        if record is not None and (wait_s := self.pending.wait_s(time.monotonic())):
            time.sleep(wait_s)
        with contextlib.suppress(queue.Empty):
            while record is not None:
                self._waiting.append(record)
                record = self.queue.get_nowait()
        self._closing = self._closing or record is None

    # The reading thread.

    def _read(self) -> None:
        call = self._call
        code = grpc.StatusCode.UNAVAILABLE
        try:
            for reply in call:
                self._answered(reply)
        except grpc.RpcError as error:
            code = error.code()
        except UnaskedAnswer as error:
            _log.error("witness_out_of_line", error=str(error))
            call.cancel()
        except BaseException:
            call.cancel()
            raise
        finally:
            self._end(code)
        if code is grpc.StatusCode.UNAVAILABLE:
            self._unary.lost()

    def _answered(self, reply: curp_pb2.RecordsReply) -> None:
        verdicts = reply.verdicts
        records = self.pending.answered(reply.first, len(verdicts), time.monotonic())
        for record, verdict in zip(records, verdicts, strict=True):
            _end_one(record, verdict)

    def _end(self, code: grpc.StatusCode) -> None:
        self._code = code
        self.over = True
        self._lose()

    def _lose(self) -> None:
        """See to what has no verdict, in a stream that is over. Several threads may."""
        lost = self.pending.broken()
        with contextlib.suppress(queue.Empty):
            while True:
                if (left := self.queue.get_nowait()) is not None:
                    lost.append(left)
        with contextlib.suppress(IndexError):
            while True:
                lost.append(self._waiting.popleft())
        # For gRPC's thread, which may wait there.
        self.queue.put(None)
        if self._code in NO_STREAM:
            self._unary.instead = True
        for record in lost:
            if self._code in SENT_SINGLY and not record.done:
                try:
                    self._unary.send(record)
                except ValueError:
                    # The channel was closed meanwhile; the stream may have had it before.
                    _end_one(record, None)
            else:
                _end_one(record, None)


class _Unary:
    """Records one by one, if there is no stream."""

    def __init__(self, channel: grpc.Channel, lost: Callable[[], None]) -> None:
        """``lost``: see ``SyncRecords``."""
        self.lost = lost
        self._record = record_stub(channel)
        self._watch = watch_stub(channel)
        self._watching: Any = None
        self.instead = False

    def send(self, record: Record) -> None:
        """Send a record. ValueError: the channel is closed."""
        if (request := record.request) is None:
            return
        self.stay_awake()
        self._record.future(request, RECORD_TIMEOUT_S).add_done_callback(
            lambda reply: self._answered(record, reply)
        )

    def stay_awake(self) -> None:
        """Keep gRPC's thread for this channel, which it ends when no call is in flight.

        To begin a thread for each record of a caller that is alone takes longer than
        to send it.
        """
        if self.instead and (self._watching is None or self._watching.done()):
            watching = self._watching = self._watch(b"")
            if not watching.add_callback(lambda: self._over(watching)):
                self._over(watching)

    def _answered(self, record: Record, reply: Any) -> None:
        _end_one(record, _unary_verdict(reply))
        self._over(reply)

    def _over(self, call: Any) -> None:
        if call.code() is grpc.StatusCode.UNAVAILABLE:
            # Closing the channel waits for what gRPC's thread, which is this one, has to deliver.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.lost, name="curp-lost", daemon=True).start()


def _unary_verdict(reply: Any) -> int | None:
    if reply.cancelled() or reply.code() is not grpc.StatusCode.OK:
        return None
    verdict: int = reply.result().verdict
    return verdict


def _end_one(record: Record, verdict: int | None) -> None:
    try:
        record.end(verdict)
    except Exception:  # noqa: BLE001 - of one caller's; the others' verdicts are to come
        _log.exception("record_callback_raised")
