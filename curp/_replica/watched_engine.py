"""A watch over a log engine that notices when it does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

from curp.log._commits import GroupLog
from curp.log._errors import LogUnavailable

_OPERATIONS = (
    *("leadership", "take_leadership", "renew_leadership", "end_leadership"),
    *("next_configuration", "append", "tail", "first", "read", "wait", "trim"),
    *("metadata", "put_metadata", "save_snapshot", "load_snapshot"),
)
# What takes longer is worth a word.
_LONG_S = 1.0


class EngineWatch:
    """What is asked of an engine and has not been answered, and what it failed with last.

    Any thread; ``trouble`` never waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds, monotonic."""
        self._clock = clock
        # For each request in flight, by its number: the operation, and when an answer is due.
        self._asked: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._failed: tuple[str, float] | None = None
        self._answered_at = clock()

    def trouble(self) -> str:
        """Say what the engine does not do now, empty if it answers."""
        what, seconds = self._look()
        return f"the log engine {what} for {seconds:.1f} s" if what else ""

    def silent_s(self) -> float:
        """Return for how many seconds the engine has not answered, 0.0 if it answers."""
        return self._look()[1]

    def unanswered_s(self) -> float:
        """Return how long ago it answered anything, 0.0 where nothing is asked of it.

        Counted on while it is asked again and again, and each time in vain.
        """
        if not self._asked and self._failed is None:
            return 0.0
        return self._clock() - self._answered_at

    def _look(self) -> tuple[str, float]:
        now = self._clock()
        asked = list(self._asked.values())
        if asked:
            operation, due = min(asked, key=lambda each: each[1])
            if now - due >= _LONG_S:
                return f"has not answered {operation!r}", now - due
        failed = self._failed
        if failed is None:
            return "", 0.0
        return f"says {failed[0]!r}", now - failed[1]

    def call(self, operation: str, method: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """Ask the engine; what it answers."""
        waits_s = more.get("timeout_s", 0.0) if operation == "wait" else 0.0
        with self._lock:
            self._next += 1
            number = self._next
        self._asked[number] = (operation, self._clock() + waits_s)
        try:
            answer = method(*given, **more)
        except LogUnavailable as error:
            since = self._clock() if self._failed is None else self._failed[1]
            self._failed = (str(error), since)
            raise
        finally:
            del self._asked[number]
        self._failed, self._answered_at = None, self._clock()
        return answer


class _Watched:
    """Stands for an engine; not of its class, but of its protocol."""

    def __init__(self, engine: GroupLog, watch: EngineWatch) -> None:
        self._engine = engine
        for operation in _OPERATIONS:
            setattr(self, operation, _asking(watch, operation, engine))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _asking(watch: EngineWatch, operation: str, engine: GroupLog) -> Callable[..., Any]:
    def ask(*given: Any, **more: Any) -> Any:
        # Looked up each time: in a forked child it refuses.
        return watch.call(operation, getattr(engine, operation), *given, **more)

    return ask


def watched(engine: GroupLog) -> tuple[GroupLog, EngineWatch]:
    """Return what stands for the engine, and what tells whether it answers."""
    watch = EngineWatch()
    return cast("GroupLog", _Watched(engine, watch)), watch
