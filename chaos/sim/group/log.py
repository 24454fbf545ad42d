"""Model of the world: the store that has a group's log, and the way to it that faults strike."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from curp.log._commits import GroupLog, first_keys
from curp.log._commits.bodies import header_of
from curp.log._commits.keys import LEASE, TAIL, LogTail
from curp.log._creation import new_log
from curp.log._values import NewLog
from sharedlog._core.commit import Commit
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.engine import Limits
from sharedlog._engines.memory import LIMITS, MemoryEngine, MemoryLog

__all__ = ["LogStore", "Moment", "Strike"]


class Moment(enum.Enum):
    """Where in a request a fault may strike."""

    # The request is lost: nothing happened.
    BEFORE = "before"
    # The reply is lost: it is done.
    AFTER = "after"


# Called with a request's name (a method of ``Engine``; "append" for a commit of entries) and the
# moment, where it matters of who reads: BEFORE alone; raises ``LogUnavailable``, or what is to end
# the caller, to let a fault strike.
Strike = Callable[[str, Moment], None]


class LogStore:
    """A store in memory with the log of one group.

    ``clock``: seconds, by which leases end. ``on_append``: called after each append.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_append: Callable[[], None] = lambda: None,
        new: NewLog | None = None,
    ) -> None:
        self.log = MemoryLog(first_keys(new or new_log()), clock=clock)
        self._on_append = on_append

    def engine(
        self, strike: Strike = lambda request, moment: None, limits: Limits = LIMITS
    ) -> GroupLog:
        """Open the log as one replica does, with faults of its own."""
        way = _Way(self.log, strike, limits, self._on_append)
        return GroupLog(way, clock=self.log.clock)

    @property
    def tail(self) -> int:
        """The LSN of the last entry."""
        return self.log.tail

    def end_lease(self) -> None:
        """End the leader's lease now."""
        self.log.ends[LEASE] = self.log.clock()

    def forget(self, after: int) -> None:
        """Lose the entries above ``after``, as a store that went back does."""
        log = self.log
        del log.rows[after - log.removed :]
        log.keys[TAIL] = LogTail(after, header_of(log.rows[-1]).append_id).value()


class _Way(MemoryEngine):
    """One replica's way to the store."""

    def __init__(
        self, log: MemoryLog, strike: Strike, limits: Limits, on_append: Callable[[], None]
    ) -> None:
        super().__init__(log)
        self.limits = limits
        self._strike = strike
        self._on_append = on_append

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        request = "append" if commit.entries else "commit"
        self._strike(request, Moment.BEFORE)
        found = super().commit(commit)
        if commit.entries:
            self._on_append()
        self._strike(request, Moment.AFTER)
        return found

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        self._strike("get", Moment.BEFORE)
        return super().get(keys)

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        self._strike("scan", Moment.BEFORE)
        return super().scan(prefix)

    def remaining(self, key: str) -> float:
        """See ``Engine``."""
        self._strike("remaining", Moment.BEFORE)
        return super().remaining(key)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        self._strike("read", Moment.BEFORE)
        return super().read(after, limit, tag)

    def tail(self) -> int:
        """See ``Engine``."""
        self._strike("tail", Moment.BEFORE)
        return super().tail()

    def first(self) -> int:
        """See ``Engine``."""
        self._strike("first", Moment.BEFORE)
        return super().first()

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``."""
        self._strike("wait", Moment.BEFORE)
        return super().wait(after, timeout_s)

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        self._strike("remove", Moment.BEFORE)
        super().remove(through)
        self._strike("remove", Moment.AFTER)
