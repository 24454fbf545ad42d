"""The appender of a leadership: what it writes to the log next (DESIGN §7: 1, 4 and 11)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from curp._core.leader import EntryBatch, Leader
from curp._core.poison import PoisonWatch
from curp._core.poison_notes import NoteDown, PoisonNotes
from curp._core.steps import ROUNDING_S, Rest
from curp.log._errors import may_pass

_RETRY_S = 0.05


class AppendBatch(NamedTuple):
    """Append a batch; the step repeats with the same batch until its outcome is known.

    ``append_id`` names it to the engine, which recognises it. ``configuration``: the
    number that it is conditional on.
    """

    batch: EntryBatch
    configuration: int
    append_id: bytes


class Job(NamedTuple):
    """Do ``what``, which is the shell's own, while no append is in flight."""

    what: Any


class Settle(NamedTuple):
    """A batch is in the log, which now ends at ``tail``: see ``appended``."""

    batch: EntryBatch
    tail: int


class LetBegin(NamedTuple):
    """Notes were stored, with ``ledger`` if it changed: see ``noted``."""

    ledger: Any


class Appending:
    """Decides about the one append after the other of a leadership, as ``append_all`` asks it.

    After an ``AppendBatch`` it is told ``appended`` or ``failed``, after a ``Job`` that it
    is ``done``, after a ``NoteDown`` that it is ``noted`` or ``failed``.

    Invariants:

    1. One append or job is in flight at a time.
    2. An append whose reply was lost is given again, under the same name and number,
       until it is known: nothing is placed behind it meanwhile.
    3. What the engine refused is the end (invariant 4 of DESIGN §7): nothing follows.
    4. (Invariant 11) The configuration number changes in jobs only, so that no append
       is in flight under the old one.

    Not thread-safe. No clock: ``now`` is seconds of the leader's clock. ``name``: draws
    what an append is named by, 16 bytes that are drawn for no other.
    """

    def __init__(
        self, leader: Leader, name: Callable[[], bytes], notes: PoisonNotes | None = None
    ) -> None:
        self._leader = leader
        self.notes = notes or PoisonNotes(PoisonWatch())
        self._name = name
        self._jobs: deque[Any] = deque()
        # An append that was given and is not known to be in the log.
        self.under_way: AppendBatch | None = None
        # Whether the shell has it, or a job, in hand.
        self._in_hand = False
        self._again_at = 0.0
        # When the shell looks again by itself; ``wakes`` tells whether anything is due before.
        self._looks_at = -math.inf
        self.over = False
        # Why appends do not succeed now, empty if they do.
        self.trouble = ""

    def next(self, now: float) -> AppendBatch | Job | NoteDown | Rest | None:
        """Return the next step; None: there will be none any more."""
        if self.over:
            return None
        step = self._next(now)
        if isinstance(step, Rest):
            self._looks_at = math.inf if step.seconds is None else now + step.seconds
        else:
            self._in_hand = True
            self._looks_at = -math.inf
        return step

    def wakes(self, now: float) -> bool:
        """Whether a new entry has to wake the shell: it is due before the shell looks by itself.

        The first entry of a batch sets when the shell looks, and most entries behind it are
        due no earlier. A wake-up for nothing would cost two switches of threads.
        """
        due_in_s = self._leader.due_in(now)
        return due_in_s is not None and now + due_in_s < self._looks_at - ROUNDING_S

    def appended(self, tail: int) -> EntryBatch:
        """Handle that the batch is in the log, which ends at ``tail``; return the batch."""
        self.under_way = None
        self._in_hand = False
        self.trouble = ""
        return self._leader.appended(tail)

    def failed(self, error: Exception, now: float) -> bool:
        """Handle an append that raised; return whether to retry it after a pause.

        If not, the leadership is over.
        """
        self._in_hand = False
        self.notes.again()
        if not may_pass(error):
            self.over = True
            return False
        self.trouble = str(error)
        self._again_at = now + _RETRY_S
        return True

    def between(self, job: Any) -> bool:
        """Have a job done between two appends; False if nothing is done any more."""
        if self.over:
            return False
        self._jobs.append(job)
        return True

    def done(self) -> None:
        """Handle that a job is done."""
        self._in_hand = False

    def noted(self) -> Sequence[Any]:
        """Handle that the notes are stored; return the tokens of the calls that may begin."""
        self._in_hand = False
        self.trouble = ""
        return self.notes.written()

    def stop(self) -> None:
        """Give out nothing more."""
        self.over = True

    def undone(self) -> list[Any]:
        """Return, once, the jobs that were not given out when it was over."""
        jobs, self._jobs = list(self._jobs), deque()
        return jobs

    def _next(self, now: float) -> AppendBatch | Job | NoteDown | Rest:
        if self._in_hand:
            return Rest(None)
        if self.under_way is not None:
            wait_s = self._again_at - now
            return Rest(wait_s) if wait_s > ROUNDING_S else self.under_way
        if self._jobs:
            return Job(self._jobs.popleft())
        wait_s = self._again_at - now
        noting = self.notes.due() and wait_s <= ROUNDING_S
        if noting and self.notes.urgent():
            return self.notes.take(self._leader.configuration)
        due_in_s = self._leader.due_in(now)
        if due_in_s is None or due_in_s > ROUNDING_S:
            if noting:
                return self.notes.take(self._leader.configuration)
            if self.notes.due():
                return Rest(wait_s if due_in_s is None else min(wait_s, due_in_s))
            return Rest(due_in_s)
        self.under_way = AppendBatch(self._leader.take(), self._leader.configuration, self._name())
        return self.under_way


def append_all(
    appending: Appending, clock: Callable[[], float]
) -> Generator[AppendBatch | Job | NoteDown | Settle | LetBegin | Rest, Any, None]:
    """Write what a leadership gives places to its log, until that is over.

    Raises what ended it. A crash after an ``AppendBatch`` or ``NoteDown`` leaves what the
    engine stored, of which no caller was told; the next leader reads it.
    """
    while (step := appending.next(clock())) is not None:
        if isinstance(step, Rest):
            yield step
            continue
        try:
            answer = yield step
        except Exception as error:
            if isinstance(step, Job) or not appending.failed(error, clock()):
                raise
            continue
        if isinstance(step, AppendBatch):
            yield Settle(step.batch, answer)
        elif isinstance(step, NoteDown):
            yield LetBegin(answer)
        else:
            appending.done()
