"""A record on its way to one witness, and its verdict."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from curp._core.pending_records import MOST_IN_MESSAGE

# A stream whose witness was silent for so long is given up.
SILENT_S = 5.0
# The most bytes of one message, far below what gRPC takes; it has one record at least.
_MESSAGE_BYTES = 1 << 20


class Record:
    """The verdict of a witness on one call, once there is one. Any thread, or a loop's.

    ``verdict``: by the numbers of ``curp.v1.RecordReply``; None: it could not be asked, or did
    not say, and may hold the call. ``sent``: False if it is known that it was not asked.
    Without a lock: each step is one of the interpreter's, and of the verdict and the thread that
    waits for it the second sees the first.
    """

    __slots__ = ("_wakes", "done", "request", "sent", "verdict")

    def __init__(self, request: bytes) -> None:
        """``request``: a serialised RecordRequest, kept as long as it may have to be sent."""
        self.request: bytes | None = request
        self.done = False
        self.sent = True
        self.verdict: int | None = None
        self._wakes: list[Callable[[Record], Any]] = []

    def end(self, verdict: int | None, *, sent: bool = True) -> None:
        """Take its verdict; only the first one counts."""
        if self.done:
            return
        self.verdict = verdict
        self.sent = sent
        self.request = None
        self.done = True
        self._wake()

    def give_up(self) -> None:
        """Give it up: no caller is told its verdict any more."""
        self._wakes = []
        self.request = None
        self.done = True

    def on_end(self, wake: Callable[[Record], Any]) -> None:
        """Have ``wake`` called at its end; now if it is over."""
        self._wakes.append(wake)
        if self.done:
            self._wake()

    def wait(self, timeout_s: float) -> bool:
        """Block until its end; whether that came in time."""
        ended = threading.Lock()
        ended.acquire()
        self.on_end(lambda _: ended.release())
        return ended.acquire(timeout=timeout_s)

    def _wake(self) -> None:
        wakes = self._wakes
        while wakes:
            try:
                wake = wakes.pop()
            except IndexError:
                # Another thread has it.
                return
            wake(self)


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a method while its object is there, and does not hold that."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (found := reference()) is not None:
            found()

    return call


def give_up(records: Iterable[Record]) -> None:
    """Give up those that are still in flight."""
    for record in records:
        if not record.done:
            record.give_up()


def take_together(waiting: deque[Record]) -> tuple[list[Record], list[bytes]]:
    """Take the records of one message, and what is sent of each; none that was given up."""
    records: list[Record] = []
    requests: list[bytes] = []
    size = 0
    while len(records) < MOST_IN_MESSAGE:
        try:
            # At once: another thread may take what is left.
            record = waiting.popleft()
        except IndexError:
            break
        if (request := record.request) is None:
            continue
        size += len(request)
        if requests and size > _MESSAGE_BYTES:
            waiting.appendleft(record)
            break
        requests.append(request)
        records.append(record)
    return records, requests
