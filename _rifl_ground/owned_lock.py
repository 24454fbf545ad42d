"""Locks and leads that know their owner: a call within such a call is refused at once.

User code can run in the middle of anything: a signal's handler, a finalizer (``__del__``), a
handler of ``logging``. Without an owner such code would wait for its own thread.
"""

from __future__ import annotations

import contextvars
from _thread import TIMEOUT_MAX, RLock
from collections import deque
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

# A thread waits so long for a lock or a lead. Who has it longer waits, most likely, for the waiter.
LONGEST_S = 120.0
WITHIN = (
    "this thread is in the middle of another call of the same kind: a signal's handler, a "
    "finalizer, or a logging handler made this one. Nothing of it was sent: make it later, or "
    "hand it to another thread"
)


class OwnedLock(RLock):  # type: ignore[misc]  # C's class may have subclasses
    """A lock for ``with`` and for ``threading.Condition`` that refuses the thread that has it.

    ``error`` makes, of a text, what is raised then, and after ``longest_s`` of waiting (by
    default ``LONGEST_S``): nothing under the lock was begun. It is ``math.inf`` for a lock under
    which the application's own code may wait, such as a stream's source. Taking the lock and noting
    the owner are one step of C: no signal comes in between.
    """

    def __new__(
        cls, error: Callable[[str], Exception], longest_s: float | None = None
    ) -> OwnedLock:
        """See the class."""
        del error, longest_s
        return super().__new__(cls)

    def __init__(self, error: Callable[[str], Exception], longest_s: float | None = None) -> None:
        """See the class."""
        self._error = error
        self._longest_s = min(LONGEST_S if longest_s is None else longest_s, TIMEOUT_MAX)

    @property
    def owned(self) -> bool:
        """Whether this thread has it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def __enter__(self) -> bool:  # type: ignore[override]
        """Take the lock."""
        # C's class has it for ``threading.Condition``.
        if self._is_owned():  # type: ignore[attr-defined]
            raise self._error(WITHIN)
        try:
            taken: bool = self.acquire(False) or self.acquire(timeout=self._longest_s)
            if taken:
                # No constant: that would be returned outside of this block.
                return taken
        except BaseException:
            # A signal's, maybe just after the lock was taken.
            if self._is_owned():  # type: ignore[attr-defined]
                self.release()
            raise
        raise self._error(too_long("has the lock", self._longest_s))


class OwnedWork:
    """Work that a thread, or a task, does for others, one piece at a time.

    What the work calls is within it, whatever thread or task it goes on in: contexts are
    inherited.
    """

    def __init__(self) -> None:
        """Nothing is done."""
        self._now: object = None

    def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do a piece of work in this thread."""
        token = self.begin()
        try:
            return work(*args, **kwargs)
        finally:
            self.end()
            _WORK.reset(token)

    def begin(self) -> contextvars.Token[object]:
        """Begin a piece of work in this context, which ``end`` ends: a coroutine's."""
        self._now = now = object()
        return _WORK.set(now)

    def end(self) -> None:
        """End a piece of work; what goes on in its context is within it no more."""
        self._now = None

    @property
    def within(self) -> bool:
        """Whether who asks was called by the piece that is being done."""
        return self._now is not None and _WORK.get() is self._now


class OneByOne(Generic[_T]):
    """Has what is posted handled one at a time, in its order, and without a lock.

    By the thread that posts, or by the one that handles then. What handles may post. Any thread.
    It holds no reference to its owner.
    """

    __slots__ = ("_handles", "_posted")

    def __init__(self) -> None:
        """Nothing is posted."""
        self._posted: deque[_T] = deque()
        # The ``post`` that handles items now. No lock: a thread that posts would wait for one that
        # a signal's handler has stopped in the middle of this, and which may wait for that thread.
        self._handles: dict[int, object] = {}

    def post(self, item: _T, handle: Callable[[_T], None]) -> None:
        """Have it handled. An exception of ``handle`` is raised; the next post goes on."""
        self._posted.append(item)
        handles, this = self._handles, object()
        try:
            # One step of C. The thread that handles looks again after it has released this.
            while self._posted and handles.setdefault(0, this) is this:
                while self._posted:
                    handle(self._posted.popleft())
                del handles[0]
        except BaseException:
            if handles.get(0) is this:
                del handles[0]
            raise


_WORK: contextvars.ContextVar[object] = contextvars.ContextVar("rifl_work", default=None)


def too_long(what: str, longest_s: float) -> str:
    """Say that another thread was waited for in vain."""
    return (
        f"another thread {what} for more than {longest_s:g} s: maybe it waits for this one. "
        "Nothing of this call was sent"
    )
