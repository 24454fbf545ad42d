"""Group commit of every engine: concurrent appends share one transaction, and one sync."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.steps import Lsns
from sharedlog._engines.lead import Candidate, Lead

# What one transaction holds at most, of commits that met.
_MOST = 1000
_MOST_BYTES = 16 << 20
# How long one waits for those to come back that were just answered, as a part of what writing
# took; and for how many transactions the wait is skipped after it was in vain.
_PATIENCE = 0.5
_LONGEST_S = 0.005
_VAIN = 20


class PendingCommit(Candidate):
    """One caller's commit on its way; the thread that writes it sets its outcome."""

    __slots__ = ("_error", "_lsns", "commit")

    def __init__(self, commit: Commit) -> None:
        super().__init__()
        self.commit = commit
        self._lsns: Lsns | None = None
        self._error: Exception | None = None

    @property
    def bytes(self) -> int:
        """The bytes of its entries: of interest where several are written together."""
        return sum([len(body) for body, _ in self.commit.entries])

    def done(self, found: Lsns | Refused) -> None:
        """Note what the engine found, once that is durable."""
        if isinstance(found, Refused):
            self._error = found
        else:
            self._lsns = found

    def failed(self, error: Exception) -> None:
        """Note why it is not known to have happened."""
        self._error = error

    def result(self) -> Lsns:
        """Return or raise what was noted."""
        if self._error is not None:
            raise self._error
        if self._lsns is None:
            raise LogUnavailable("this commit was not written")
        return self._lsns


class GroupCommit:
    """Has one thread write for all that wait, and then the next. Any thread.

    ``write`` is called by one thread at a time, and says of each what became of it: by
    ``done``, or by raising, which fails all. While one transaction is synced, the next
    ones gather; who leads those waits, for a part of what a sync takes, for the ones that were
    just answered, which mostly come again. A caller that is alone does not wait.
    """

    def __init__(self, write: Callable[[Sequence[PendingCommit]], None]) -> None:
        self._write = write
        self._lead: Lead[PendingCommit] = Lead()
        # Of the last transaction: how many it was for, and how long it took.
        self._last = 0
        self._last_s = 0.0
        self._vain = 0

    def commit(self, commit: Commit) -> Lsns:
        """Have it written; blocks. Raises ``Refused``, ``LogError``."""
        mine = PendingCommit(commit)
        self._lead.run(mine, self._write_all)
        return mine.result()

    def _write_all(self, mine: PendingCommit) -> None:
        if mine.waited:
            self._gather(mine)
        together = [mine]
        if self._lead.waiting:
            together += self._taken_along(mine)
        began = time.monotonic()
        try:
            self._write(together)
            self._last, self._last_s = len(together), time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - all commits get it
            for each in together:
                each.failed(error)
        except BaseException:
            # A signal's, in this thread: it is not the others' to raise.
            for each in together:
                each.failed(LogUnavailable("the thread that wrote for this one was interrupted"))
            raise

    def _gather(self, mine: PendingCommit) -> None:
        if self._vain:
            self._vain -= 1
        elif not self._lead.gather(mine, self._last, min(_PATIENCE * self._last_s, _LONGEST_S)):
            self._vain = _VAIN

    def _taken_along(self, mine: PendingCommit) -> list[PendingCommit]:
        count, size = 1, mine.bytes

        def fits(each: PendingCommit) -> bool:
            nonlocal count, size
            count, size = count + 1, size + each.bytes
            return count <= _MOST and size <= _MOST_BYTES

        return self._lead.take(fits)
