"""The following of a stream in a thread: committed messages, and a hold that moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from _rifl_ground.numbers import is_whole
from _rifl_ground.owned_lock import LONGEST_S, OwnedLock
from sharedlog._core.arguments import check_seconds, check_truth, check_whole, shown
from sharedlog._core.catalog import Stream, hold_retention_us
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogForked,
    LogStopped,
    LogUnavailable,
    ReentrantUse,
    TrimmedLog,
)
from sharedlog._core.following import From, Moment, Start, read_some
from sharedlog._core.holds import BEGINNING, END
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, State
from sharedlog._core.steps import Rule
from sharedlog._core.streams import check_name, tag_of
from sharedlog._log.place import Place, forked
from sharedlog._log.resending import until_answered

_T = TypeVar("_T")
_log = get_logger("sharedlog")
Behind = Position | Message | str | None
After = Behind | datetime | Mapping[int, Behind]
# Messages of one read.
AT_ONCE, MOST_AT_ONCE = 1_000, 100_000
# How long a hold may lag behind what was done, and behind a log without messages for it.
_TOLD_S, _PASSED_S = 0.5, 10.0
# How soon a follower that waits learns that it was closed.
_SLICE_S = 0.1
_ATTEMPTS = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Ready:
    """What was read, and how much of it was delivered."""

    __slots__ = ("at", "end", "found")

    def __init__(self, found: list[Committed]) -> None:
        """Nothing was."""
        self.found = found
        self.at, self.end = 0, len(found)

    @property
    def waits(self) -> bool:
        """Whether it has messages to deliver."""
        return self.at < self.end


class Following:
    """An iterator of a stream's messages that waits for the next one; ``log.follow`` returns it.

    One thread iterates, or calls ``poll``; any thread can call ``done`` and ``close``. A context
    manager. Raises ``TrimmedLog`` if the next messages were trimmed or its hold was dropped,
    ``CorruptLog`` and ``NewerFormat``: it skips nothing, and raises the same again. After
    ``LogUnavailable`` it can be used on.
    """

    def __init__(
        self,
        place: Place,
        stream: Stream,
        substreams: Iterable[int] | None,
        after: After,
        *,
        committed: bool,
        name: str | None,
    ) -> None:
        """Use ``log.follow``."""
        check_truth(committed, "committed")
        if name is not None and not committed:
            raise InvalidRequest("a hold is of what is committed: no name with committed=False")
        if name is not None:
            check_name(name, "follower")
        self._place = place
        self._stream, self._stream_name, self._seals = stream, stream.name, place.seals
        chosen = chosen_substreams(stream, substreams)
        self._follower = place.follower(
            [tag_of(stream.name, each) for each in chosen],
            start_of(place, stream, after),
            name=name,
            retention_us=hold_retention_us(stream),
            committed=committed,
        )
        self._name = name
        self._named = name is not None
        # Since when it has had no message, where that is watched.
        self._since: float | None = None
        # Of the follower, between the thread that iterates and the one that calls ``done``.
        self._lock = OwnedLock(ReentrantUse, LONGEST_S + place.timeout_s)
        self._ready = _Ready([])
        self._error: LogError | None = None
        self._left = False
        self._closed = threading.Event()
        self._told_s = self._passed_s = time.monotonic()
        refuse_in_children(self, forked, _forget)
        self._begin()

    def __iter__(self) -> Following:
        """Return itself."""
        return self

    def __next__(self) -> Message:
        """Wait for the next message and return it. Ends once it is closed."""
        ready = self._ready
        at = ready.at
        if at == ready.end:
            if not self.fill(None):
                raise StopIteration
            return next(self)
        try:
            each = ready.found[at]
            message = Message(
                each.envelope,
                each.position,
                self._stream_name,
                each.position.substream,
                each.at_us,
                each.state,
                self._seals,
            )
            ready.at = at + 1
            return message
        except BaseException:
            # A signal's, maybe: who called has no message, and gets this one next.
            ready.at = at
            raise

    def poll(self, timeout_s: float = 0.0) -> list[Message]:
        """Wait for messages and return some of those that are there; [] after the timeout."""
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        if not self._ready.waits:
            self._place.refresh(self._follower)
            if not self.fill(timeout_s):
                return []
        ready = self._ready
        at = ready.at
        messages: list[Message] = []
        try:
            while ready.waits:
                try:
                    messages.append(next(self))
                except LogError:
                    # What is before it is delivered first.
                    if not messages:
                        raise
                    break
            return messages
        except BaseException:
            ready.at = at
            raise

    def done(self, place: Message | Position) -> None:
        """Say that this message, and all that were delivered before it, are done.

        The hold moves there soon after, at the latest on close: after a crash the last ones may be
        delivered again. Raises ``HoldMoved`` if another follower of this name is further on,
        and ``TrimmedLog`` if an operator dropped the hold. Raises ``InvalidRequest`` for a message
        that this follower did not deliver.
        """
        position = place.position if isinstance(place, Message) else place
        if not isinstance(position, Position):
            raise InvalidRequest(f"{shown(place)} is no message, and no position")
        position.check(self._place.incarnation, self._stream.substreams)
        with self._lock:
            self._follower.take(self._ready.found)
            self._follower.done(position)
            self._tell(force=False)

    def close(self) -> None:
        """End, and move the hold after what is done; idempotent. A thread that waits is woken."""
        self._closed.set()
        if self._left:
            return
        with self._lock:
            try:
                if self._named and not self._place.closing.is_set():
                    self._tell(force=True)
            except LogError:
                self._leave()
                raise
            self._leave()

    def _leave(self) -> None:
        self._place.leave(self._follower)
        # Not before: a close that is interrupted can be made again.
        self._left = True

    def __enter__(self) -> Following:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; of two errors the first is raised."""
        try:
            self.close()
        except LogError:
            if kind is None:
                raise

    def fill(self, timeout_s: float | None) -> bool:
        """Wait for messages, at most so long, and have them ready; False: there are none."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed.is_set():
            with self._lock:
                if self._error is not None:
                    raise self._error
                # An interrupt may have come just before that.
                self._follower.take(self._ready.found)
                if self._ready.waits:
                    return True
                found = self._told(lambda: self._follower.look(_now_us()))
                if found:
                    self._ready = _Ready(found)
                self._follower.take(found)
                if self._named and not found:
                    self._tell(force=False)
            # Without the lock: an observer may say what is done.
            self._watched(len(found))
            if found:
                return True
            if not self._wait(end):
                return False
        return False

    def _wait(self, end: float | None) -> bool:
        """Wait until the log is longer; False: the timeout has passed."""
        while not self._closed.is_set():
            left_s = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left_s <= 0:
                return False
            try:
                if self._place.wait(self._follower, left_s):
                    return True
            except LogStopped:
                raise
            except LogUnavailable:
                # Reading tries for longer, and says so if that fails too.
                return True
            if self._named:
                with self._lock:
                    self._tell(force=False)
        return True

    def _watched(self, messages: int) -> None:
        """Tell those who watch of messages, and for how long there were none."""
        observers = self._place.observers
        if observers is None:
            return
        if messages:
            waited_s = None if self._since is None else time.monotonic() - self._since
            self._since = None
            observers.delivered(self._stream.name, messages, waited_s)
        elif self._since is None:
            self._since = time.monotonic()

    def _begin(self) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                until_answered(self._place, lambda: self._follower.begin(_now_us()))
            except LogForked as error:
                _log.error("log_forked", log=self._place.name, error=str(error))
                raise
            except TrimmedLog as error:
                # The beginning may be trimmed while it is looked for.
                if not self._follower.at_beginning or attempt == _ATTEMPTS - 1:
                    raise self._lost(error) from error
            else:
                return

    def _tell(self, *, force: bool) -> None:
        now_s = time.monotonic()
        idle = force or now_s - self._passed_s >= _PASSED_S
        if not idle and now_s - self._told_s < _TOLD_S:
            return
        self._told_s = now_s
        if idle:
            self._passed_s = now_s
        self._told(lambda: self._follower.move(_now_us(), idle=idle))

    def _told(self, rule: Callable[[], Rule[_T]]) -> _T:
        """Run a rule; a trim is told as what it means to this follower."""
        try:
            return until_answered(self._place, rule)
        except TrimmedLog as error:
            raise self._lost(error) from error

    def _lost(self, error: TrimmedLog) -> TrimmedLog:
        """Tell what a trim means to this follower, which goes on no more."""
        try:
            found = self._place.run(self._follower.explain(error))
        except TrimmedLog as dropped:
            found = dropped
        self._error = found
        _log.error(
            "follower_lost_messages",
            log=self._place.name,
            stream=self._stream.name,
            name=self._name,
            lost=found.lost,
            error=str(found),
        )
        return found


def _forget(inherited: Following) -> None:
    # The parent delivers what was read ahead; an iteration here calls ``fill``, which raises.
    inherited._ready = _Ready([])


def read_once(
    place: Place, stream: Stream, substream: int, after: After, limit: int
) -> list[Message]:
    """Read a substream once: about ``limit`` messages; see ``Log.read``."""
    check_whole(limit, "limit", 1, MOST_AT_ONCE)
    chosen_substreams(stream, (substream,))
    tag = tag_of(stream.name, substream)
    start = start_of(place, stream, after)

    found = until_answered(place, lambda: read_some(tag, place.incarnation, start, limit))
    state, seals = State.COMMITTED, place.seals
    return [
        Message(each.envelope, each.position, stream.name, substream, each.at_us, state, seals)
        for each in found
    ]


def chosen_substreams(stream: Stream, substreams: Iterable[int] | None) -> list[int]:
    """Return which substreams are meant; raises ``InvalidRequest`` for what is none."""
    if substreams is None:
        return list(range(stream.substreams))
    if is_whole(substreams):
        raise InvalidRequest(f"substreams={substreams}: several are given, as ({substreams},)")
    if not isinstance(substreams, Iterable):
        raise InvalidRequest(f"substreams={shown(substreams)}: several numbers are given")
    chosen = list(substreams)
    if not all(map(is_whole, chosen)):
        raise InvalidRequest(f"substreams {shown(chosen)}: they are numbers")
    found = sorted(set(chosen))
    if not found or not 0 <= found[0] <= found[-1] < stream.substreams:
        raise InvalidRequest(
            f"substreams {found} of {stream.name!r}: some of 0 to {stream.substreams - 1}"
        )
    return found


def start_of(place: Place, stream: Stream, after: After | From) -> Start:
    """Return where to begin, as the rules have it; raises ``InvalidRequest``, ``LogForked``."""
    if isinstance(after, From):
        # Used by this library alone.
        return after.lsn
    if isinstance(after, datetime):
        if after.tzinfo is None:
            raise InvalidRequest("a time without a zone could be any: give it one")
        return Moment((after - _EPOCH) // timedelta(microseconds=1))
    if isinstance(after, Mapping):
        found = {}
        for substream, each in after.items():
            chosen_substreams(stream, (substream,))
            found[tag_of(stream.name, substream)] = _behind(place, stream, each)
        return found
    return _behind(place, stream, after)


def _behind(place: Place, stream: Stream, after: Behind) -> Position | str | None:
    if isinstance(after, str) and "@" in after:
        after = Position.parse(after)
    position = after.position if isinstance(after, Message) else after
    if isinstance(position, Position):
        position.check(place.incarnation, stream.substreams)
    elif position is not None and position not in (BEGINNING, END):
        raise InvalidRequest(
            f"{position!r:.200} is no place to begin at: beginning, end, a position or message, a "
            "time, or one place for each substream"
        )
    return position


def _now_us() -> int:
    return time.time_ns() // 1000
