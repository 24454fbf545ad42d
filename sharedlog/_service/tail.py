"""The tail of a log, watched by one thread for all who wait for an append (DESIGN-LOG §12, L5)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection

from _rifl_ground.loops import tell_loop
from sharedlog._core.errors import LogError
from sharedlog._core.streams import stream_of
from sharedlog._engines.engine import Engine

_LOOK_S = 0.2
# How often who waits looks, where the log grew and nothing of that is known to be for it.
_EVERY_S = 1.0
# How long new entries are taken for an append of this server that is not answered yet.
_OURS_S = 0.05
# Tags of which is known when they were appended to last.
_MOST_KNOWN = 100_000


class TailWaiter:
    """Who waits for more than is at ``lsn``, of these tags."""

    __slots__ = ("lsn", "tags", "woken")

    def __init__(self, lsn: int, tags: Collection[str]) -> None:
        """In a task of the loop."""
        self.lsn = lsn
        self.tags = tags
        self.woken = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Have it look."""
        if not self.woken.done():
            self.woken.set_result(None)


class Tail:
    """Wakes the tasks of one event loop; also says whether the log answers.

    Of what is appended through this server the tags are known: only those who wait for one of them
    are woken. Any other append wakes all. All look once a second, if the log grew.
    """

    def __init__(self, engine: Engine, told: Callable[[bool], None]) -> None:
        """``told``: called with whether the log answers, when that changes; from the thread."""
        self._engine = engine
        self._told = told
        self._loop: asyncio.AbstractEventLoop
        self._tail = 0
        # Through which LSN it is known who is concerned; and what is known behind that, by the
        # LSN that it begins with.
        self._known = 0
        self._ahead: dict[int, int] = {}
        # How many appends of this server are not answered yet.
        self._under_way = 0
        self._counting = threading.Lock()
        # When something was appended last, of each tag; and of any, where the tags are not known.
        self._of: dict[str, int] = {}
        self._of_any = 0
        # Through where those of a stream were asked to look.
        self._asked: dict[str, int] = {}
        self._waiting: dict[str, set[TailWaiter]] = {}
        self._doubt: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._answers: bool | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sharedlog-tail", daemon=True)

    def start(self) -> None:
        """Begin, for the tasks of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._look_again()
        self._thread.start()

    def stop(self) -> None:
        """End; within a second or so. Not for the loop's thread."""
        self._stopping.set()
        self._thread.join()

    async def above(self, lsn: int, tags: Collection[str]) -> None:
        """Wait until there may be something of these tags above an LSN, or it is time to look."""
        asked = max((self._asked.get(stream_of(each), 0) for each in tags), default=0)
        if max(self._of_any, asked, *(self._of.get(each, 0) for each in tags)) > lsn:
            return
        waiter = TailWaiter(lsn, tags)
        for each in tags:
            self._waiting.setdefault(each, set()).add(waiter)
        try:
            await waiter.woken
        finally:
            for each in tags:
                there = self._waiting[each]
                there.discard(waiter)
                if not there:
                    del self._waiting[each]

    def end_waits(self) -> None:
        """Have all look, whatever is there; on the loop."""
        for waiter in self._everybody():
            waiter.wake()

    def begins(self) -> None:
        """Note that an append of this server begins; any thread."""
        with self._counting:
            self._under_way += 1

    def ended(self, first: int, last: int, tags: Collection[str]) -> None:
        """It ended: it has these LSNs and tags, none if it is not known, or is not new; any thread.

        What it appended all the same, such as one without an answer, counts as another process's.
        """
        tell_loop(self._loop, self._appended, first, last, tags)

    def look(self, stream: str, lsn: int) -> None:
        """Have those who follow a stream look what is there through an LSN; any thread."""
        tell_loop(self._loop, self._look, stream, lsn)

    def _watch(self) -> None:
        tail = -1
        while not self._stopping.is_set():
            try:
                found = self._engine.wait(tail, _LOOK_S)
            except LogError:
                self._tell(False)
                self._stopping.wait(_LOOK_S)
                continue
            self._tell(True)
            if found > tail:
                tail = found
                self._loop.call_soon_threadsafe(self._grown, tail)

    def _tell(self, answers: bool) -> None:
        if answers is not self._answers:
            self._answers = answers
            self._told(answers)

    def _grown(self, tail: int) -> None:
        self._tail = max(self._tail, tail)
        self._judge()

    def _appended(self, first: int, last: int, tags: Collection[str]) -> None:
        with self._counting:
            self._under_way -= 1
        if last > self._known:
            self._ahead[max(first, self._known + 1)] = last
            for each in tags:
                self._of[each] = max(last, self._of.get(each, 0))
                for waiter in self._waiting.get(each, ()):
                    if waiter.lsn < last:
                        waiter.wake()
        self._judge()

    def _judge(self) -> None:
        """Wake all if there are unknown entries that cannot be this server's appends."""
        while (last := self._ahead.pop(self._known + 1, 0)) > self._known:
            self._known = last
        if self._known >= self._tail:
            self._settle()
        elif not self._under_way:
            self._wake_all()
        elif self._doubt is None:
            self._doubt = self._loop.call_later(_OURS_S, self._doubted, self._known)

    def _doubted(self, known: int) -> None:
        self._doubt = None
        if self._known > known:
            # What it was about is known by now.
            self._judge()
        else:
            self._wake_all()

    def _wake_all(self) -> None:
        self._settle()
        self._known = self._of_any = max(self._known, self._tail)
        self._ahead = {first: last for first, last in self._ahead.items() if last > self._known}
        for waiter in self._everybody():
            if waiter.lsn < self._tail:
                waiter.wake()

    def _settle(self) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
        if len(self._of) > _MOST_KNOWN:
            self._of.clear()
            self._of_any = self._tail

    def _look(self, stream: str, lsn: int) -> None:
        self._asked[stream] = max(lsn, self._asked.get(stream, 0))
        for tag, waiters in self._waiting.items():
            if stream_of(tag) == stream:
                for waiter in waiters:
                    if waiter.lsn < lsn:
                        waiter.wake()

    def _look_again(self) -> None:
        for waiter in self._everybody():
            if waiter.lsn < self._tail:
                waiter.wake()
        if not self._stopping.is_set():
            self._looking = self._loop.call_later(_EVERY_S, self._look_again)

    def _everybody(self) -> set[TailWaiter]:
        return set().union(*self._waiting.values())
