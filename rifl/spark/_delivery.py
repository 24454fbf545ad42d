"""The delivery of a task's rows: batched calls, several in flight, an end for each row."""

from __future__ import annotations

import collections
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import grpc
import pyarrow

from _rifl_ground.refusals import Outcome
from rifl._client import BatchItem, BatchResult
from rifl.core._shared.errors import InProgress
from rifl.spark._connections import MAX_MESSAGE_BYTES, WorkerChannel
from rifl.spark._errors import DeliveryError, RowError
from rifl.spark._freezing import freeze
from rifl.spark._keys import KeyPlan
from rifl.spark._options import MOST_CALLS, WriteOptions
from rifl.spark._report import Counts, tell_progress
from rifl.spark._requests import RequestPlan

_FIRST_ROWS = 8
_GROWTH = 2
# Batched calls in flight at first, by default.
_FIRST_CALLS = 4
# More calls in flight are kept if they bring so many rows a second more.
_WORTH = 1.2
# A call that timed out is sent again in so many parts.
_PARTS = 16


class Pace:
    """Grows and shrinks batched calls towards a time that one should take.

    It begins small and grows while calls take less than half of ``target_s``; one that
    takes more than twice of it, or times out, makes the next ones smaller. Never above
    ``max_rows``. ``rows_per_s`` bounds what is sent (None: no bound).

    ``hopeless`` when a row alone timed out and none was answered since: then smaller
    calls would fare no better.
    """

    def __init__(self, max_rows: int, target_s: float, rows_per_s: float | None = None) -> None:
        if rows_per_s is not None:
            # A second's worth at once, no more.
            max_rows = max(1, min(max_rows, int(rows_per_s)))
        self._max_rows = max_rows
        self._target_s = target_s
        self._rows_per_s = rows_per_s
        self._next_at = 0.0
        self.rows = min(max_rows, _FIRST_ROWS)
        self.hopeless = False

    def answered(self, rows: int, seconds: float) -> None:
        """Note that a call of so many rows took so long."""
        self.hopeless = False
        if seconds > 2 * self._target_s:
            self.rows = max(1, min(self.rows, int(rows * self._target_s / seconds)))
        elif seconds < self._target_s / 2 and rows >= self.rows:
            self.rows = min(self._max_rows, self.rows * _GROWTH)

    def timed_out(self, rows: int) -> int | None:
        """Note a call's timeout; return how many rows a part of it carries, None for no part."""
        if rows == 1:
            self.hopeless = True
        if self.hopeless:
            return None
        part = max(1, rows // _PARTS)
        self.rows = min(self.rows, part)
        return part

    def pause_s(self, rows: int, now: float) -> float:
        """Return how long to wait before so many rows are sent, and note that they are."""
        if self._rows_per_s is None:
            return 0.0
        at = max(now, self._next_at)
        self._next_at = at + rows / self._rows_per_s
        return at - now


class Flights:
    """How many batched calls a task has in flight: twice as many while that makes it quicker.

    Handlers that wait for something are quicker side by side; those that need the processor, or
    one lock, are not. Of one call they run one after another, as ever. ``fixed``: the user's own
    number.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.most = fixed or _FIRST_CALLS
        self._settled = fixed is not None
        self._before = 0.0
        self._left = self.most
        self._began: float | None = None
        self._rows = 0

    def answered(self, rows: int, now: float, *, slow: bool) -> None:
        """Note a call's answer; ``slow``: it took so long that calls do not grow any more."""
        if self._settled:
            return
        self._left -= 1
        if self._began is not None:
            self._rows += rows
        if self._left > 0:
            return
        if self._began is None:
            # Those before were sent with fewer of them in flight.
            self._begin(now)
        elif slow:
            self._judge(self._rows / max(now - self._began, 1e-9))
            self._began = None
        else:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._began, self._left, self._rows = now, self.most, 0

    def _judge(self, rate: float) -> None:
        if rate < _WORTH * self._before:
            self.most //= 2
            self._settled = True
        elif self.most >= MOST_CALLS:
            self._settled = True
        else:
            self.most *= 2
        self._before, self._left = rate, self.most


def portion_end(sizes: Sequence[int], start: int, max_rows: int, max_bytes: int) -> int:
    """Return where a stretch of rows within both bounds ends; one row larger goes alone."""
    held = sizes[start]
    end = start + 1
    while end < len(sizes) and end - start < max_rows and held + sizes[end] <= max_bytes:
        held += sizes[end]
        end += 1
    return end


# Rows are mapped so many at a time: enough for bulk work, little to hold.
_MAPPED_ROWS = 2000
_OK = grpc.StatusCode.OK
# What gRPC says of a message that it received, and did not read.
_TOO_LARGE = re.compile(r"(?<!CLIENT: )Received message larger than max \(\d+ vs\. (\d+)\)")
_WORDS = {
    "PAYLOAD_MISMATCH": "this session has seen another row with this key and other content",
    "WINDOW_EXCEEDED": (
        "the session keeps as many keys as the server allows one "
        "(rifl.Bounds(max_keys=..., max_key_bytes=...))"
    ),
    "SESSION_CLOSED": "the session is closed, past its retention, or another run took it; this row "
    "was not sent again",
    "LEASE_EXPIRED": "the server has forgotten the session; this row was not sent again",
    "OUTCOME_UNKNOWN": "a crash of the server took the outcome of this row, and it was not sent "
    "again: declare the method idempotent or atomic if that matters",
}
# What all rows after the first get, too.
_LOST = {"SESSION_CLOSED", "LEASE_EXPIRED"}

# What became of one row: its serialised answer, or why there is none.
Delivered = bytes | RowError


def _unnamed(result: BatchResult) -> str:
    """Return who failed a row for which rifl has no word."""
    if result.outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
        return "HANDLER"
    code = result.original_code or result.code
    return "TIMEOUT" if code is grpc.StatusCode.DEADLINE_EXCEEDED else "TRANSPORT"


def _timed_out(result: BatchResult) -> bool:
    """Whether no answer came in time, and no server said why."""
    code = result.original_code or result.code
    return (
        code is grpc.StatusCode.DEADLINE_EXCEEDED
        and result.outcome in (Outcome.UNKNOWN, Outcome.NOT_EXECUTED)
        and result.reason in ("", InProgress.reason)
    )


def _refused_unread(result: BatchResult) -> bool:
    """Whether the server's gRPC refused the request for its size, as it does each copy of it."""
    code = result.original_code or result.code
    found = _TOO_LARGE.search(result.details or "")
    return (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and result.outcome is Outcome.UNKNOWN
        and not result.reason
        # Unless it was the reply that this process refused.
        and found is not None
        and int(found[1]) != MAX_MESSAGE_BYTES
    )


def _ran_unanswered(result: BatchResult, client_id: int) -> bool:
    """Whether an operator found out that the row ran; its answer is lost."""
    return (
        result.reason == "ANSWER_LOST"
        and result.outcome in (Outcome.EXECUTED, Outcome.REPLAYED)
        and result.rpc_id is not None
        and result.rpc_id.client_id == client_id
    )


class _Sent(NamedTuple):
    at: list[int]  # positions in the slice
    keys: list[bytes]
    items: list[BatchItem]
    future: Future[list[BatchResult]]
    sent_at: float
    answered_at: list[float]
    slot: _Slice


class _Slice:
    """Rows mapped together, handed back in order once each has its end."""

    def __init__(self, batch: Any, keys: list[Any]) -> None:
        self.batch = batch
        self.keys = keys
        self.ends: list[Delivered | None] = [None] * len(keys)
        self.open = len(keys)

    def refuse(self, at: int, error: RowError) -> None:
        self.ends[at] = error
        self.open -= 1


class _Part(NamedTuple):
    """Rows of a slice that go into one batched call."""

    slot: _Slice
    at: list[int]
    keys: list[bytes]
    items: list[BatchItem]


class RowDelivery:
    """Sends record batches and gives them back with each row's end, in order.

    Holds at most as many batched calls as ``Flights`` allows, and one slice of rows beyond those
    in flight; each call carries as many rows as ``Pace`` allows. One that timed out is
    sent again in smaller ones, down to a row alone, so that ``timeout`` is a row's. One
    thread. What was sent stays sent, whatever is raised.
    """

    def __init__(
        self,
        worker: WorkerChannel,
        options: WriteOptions,
        keys: KeyPlan,
        messages: RequestPlan,
        client_id: int,
        *,
        replies: bool = True,
    ) -> None:
        self._worker = worker
        self._options = options
        self._keys = keys
        self._messages = messages
        self._client_id = client_id
        # Whether a row that ran is of no use without its answer.
        self._replies = replies
        self._under_way: collections.deque[_Sent] = collections.deque()
        # What timed out, to be sent again in smaller calls.
        self._again: collections.deque[_Part] = collections.deque()
        self._slices: collections.deque[_Slice] = collections.deque()
        self._pace = Pace(options.batch_rows, options.batch_time_s, options.rows_per_second)
        self._flights = Flights(options.in_flight)
        self._waits = threading.Event()
        self._task = ""
        self._began_at = time.monotonic()
        self._tell_at = self._began_at + options.progress_s
        self.counts = Counts()

    def run(
        self, batches: Iterable[pyarrow.RecordBatch], task: str = ""
    ) -> Iterator[tuple[pyarrow.RecordBatch, list[Delivered]]]:
        """Send everything; yields slices of the rows with their ends.

        Every ``progress_s`` a line of this process's log says how far ``task`` is.
        """
        self._task = task
        retries = self._worker.retries
        for batch in batches:
            for start in range(0, batch.num_rows, _MAPPED_ROWS):
                self._send(batch.slice(start, _MAPPED_ROWS))
                yield from self._finished()
                self.counts.retries = self._worker.retries - retries
        while self._under_way or self._again:
            self._resend()
            self._collect()
            yield from self._finished()
        yield from self._finished()
        self.counts.retries = self._worker.retries - retries
        freeze("send")

    def _send(self, rows: pyarrow.RecordBatch) -> None:
        requests = self._messages.requests(rows)
        if self._keys.whole_row:
            keys: list[Any] = list(self._keys.of_requests(rows, requests))
        else:
            keys = list(self._keys.keys(rows))
        slot = _Slice(rows, keys)
        self._slices.append(slot)
        self.counts.rows += rows.num_rows
        ready: list[int] = []
        for at, (key, request) in enumerate(zip(keys, requests, strict=True)):
            if isinstance(key, RowError):
                slot.refuse(at, key)
            elif isinstance(request, RowError):
                slot.refuse(at, RowError(request.reason, request.text, key or b""))
            else:
                ready.append(at)
        sizes = [len(requests[at]) + len(keys[at]) for at in ready]  # type: ignore[arg-type]
        start = 0
        while start < len(ready):
            while len(self._under_way) >= self._flights.most or self._again:
                self._resend()
                self._collect()
            end = portion_end(sizes, start, self._pace.rows, self._options.batch_bytes)
            portion = ready[start:end]
            sent = [keys[at] or b"" for at in portion]
            items = [BatchItem(requests[at], keys[at]) for at in portion]  # type: ignore[arg-type]
            self._submit(_Part(slot, portion, sent, items))
            start = end

    def _resend(self) -> None:
        """Send what timed out again, as far as there is room."""
        while self._again and len(self._under_way) < self._flights.most:
            self._submit(self._again.popleft())

    def _submit(self, part: _Part) -> None:
        slot, at, keys, items = part
        channel = self._worker.channel
        if channel.session.client_id != self._client_id:
            raise self._session_lost(keys[0])
        pause_s = self._pace.pause_s(len(items), time.monotonic())
        if pause_s > 0:
            self._waits.wait(pause_s)
        answered: list[float] = []
        sent_at = time.monotonic()
        future = channel.batch_future(self._options.method, items, timeout=self._options.timeout_s)
        future.add_done_callback(lambda _: answered.append(time.monotonic()))
        self._under_way.append(_Sent(at, keys, items, future, sent_at, answered, slot))

    def _session_lost(self, key: bytes) -> RowError:
        # The calls in flight know why.
        while self._under_way:
            self._collect()
        for slot in self._slices:
            for end in slot.ends:
                if isinstance(end, DeliveryError) and end.reason in _LOST:
                    return end
        return DeliveryError(
            "LEASE_EXPIRED", _WORDS["LEASE_EXPIRED"], key, "FAILED_PRECONDITION", "not-executed"
        )

    def _collect(self) -> None:
        sent = self._under_way.popleft()
        results = sent.future.result()
        counts = self.counts
        answered_at = sent.answered_at[0] if sent.answered_at else time.monotonic()
        seconds = answered_at - sent.sent_at
        if all(map(_timed_out, results)):
            if (rows := self._pace.timed_out(len(results))) is not None:
                self._split(sent, rows)
                return
        else:
            self._pace.answered(len(results), seconds)
            slow = seconds >= self._options.batch_time_s / 2
            self._flights.answered(len(results), time.monotonic(), slow=slow)
        counts.latencies.add(seconds, len(results))
        counts.sent += len(results)
        ends, client_id = sent.slot.ends, self._client_id
        executed = replayed = 0
        for at, key, result in zip(sent.at, sent.keys, results, strict=True):
            rpc_id = result.rpc_id
            if (
                result.code is _OK
                and rpc_id is not None
                and rpc_id.client_id == client_id
                and result.response is not None
            ):
                ends[at] = result.response
                if result.outcome is Outcome.EXECUTED:
                    executed += 1
                else:
                    replayed += 1
            elif not self._replies and _ran_unanswered(result, client_id):
                ends[at] = b""
                replayed += 1
            else:
                ends[at] = self._error(key, result)
        counts.executed += executed
        counts.replayed += replayed
        sent.slot.open -= len(results)
        self._progress(time.monotonic())

    def _progress(self, now: float) -> None:
        if now >= self._tell_at:
            tell_progress(self._options.method, self._task, self.counts, now - self._began_at)
            self._tell_at = now + self._options.progress_s

    def _split(self, sent: _Sent, rows: int) -> None:
        for start in range(0, len(sent.at), rows):
            part = slice(start, start + rows)
            self._again.append(_Part(sent.slot, sent.at[part], sent.keys[part], sent.items[part]))

    def _error(self, key: bytes, result: BatchResult) -> DeliveryError:
        if result.rpc_id is not None and result.rpc_id.client_id != self._client_id:
            reason = "LEASE_EXPIRED"
            text = "the server forgot the session, and the row was sent under a new one"
            return DeliveryError(reason, text, key, "FAILED_PRECONDITION", "unknown")
        reason = result.reason or _unnamed(result)
        text = _WORDS.get(reason, "")
        text = f"{text}: {result.details}" if text and result.details else text or result.details
        # What it ended with tells whose trouble it is: this row's, or everybody's.
        code = result.original_code or result.code
        outcome = Outcome.NOT_EXECUTED if _refused_unread(result) else result.outcome
        return DeliveryError(reason, text, key, code.name, outcome.value)

    def _finished(self) -> Iterator[tuple[pyarrow.RecordBatch, list[Delivered]]]:
        while self._slices and self._slices[0].open == 0:
            slot = self._slices.popleft()
            ends: list[Any] = slot.ends
            self.counts.failed += sum(isinstance(end, RowError) for end in ends)
            yield slot.batch, ends
