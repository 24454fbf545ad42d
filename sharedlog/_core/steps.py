"""The steps that rules ask of a log: generators yield them, and are sent the answers.

Its driver (a thread, an event loop, the simulator) carries each step out at an engine. A
commit that a condition refused is *thrown* into the rule as ``Refused``; every other error ends
it, ``LogUnavailable`` included: a commit of unknown fate is sent again by running the same rule
again, which finds the answer if it happened.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, TrimmedLog

_T = TypeVar("_T")


class Get(NamedTuple):
    """Send ``{key: value or None}`` of these keys, as of one moment."""

    keys: tuple[str, ...]


class Scan(NamedTuple):
    """Send ``{key: value}`` of the keys with this prefix, as of one moment."""

    prefix: str


class Read(NamedTuple):
    """Send ``Rows``: those with LSN above ``after``, in order, with this tag if it is given.

    At most ``limit`` of them, but at least one where there is one.
    """

    after: int
    limit: int
    tag: str | None = None


class Rows(NamedTuple):
    """What was read, and through which LSN that is all there is."""

    rows: list[Row]
    through: int


class Damaged(NamedTuple):
    """Send what is wrong with keys, in words: those that are not what was written."""


class Try(NamedTuple):
    """Send what is read, or the ``CorruptLog`` or ``TrimmedLog`` by which it failed."""

    read: Get | Scan | Read


class Ends(NamedTuple):
    """Send ``Lsns``: of the oldest row that is still there, and of the tail."""


class Remove(NamedTuple):
    """Take away the rows through this LSN, which were declared trimmed; idempotent.

    Send None, or the ``LogFull`` by which it failed: some of these rows may be there still.
    """

    through: int


class Lsns(NamedTuple):
    """What a commit's entries got; both are the tail's if it had none."""

    first: int
    last: int


Step = Commit | Get | Scan | Read | Damaged | Try | Ends | Remove
Rule = Generator[Step, Any, _T]


def tried(rule: Rule[_T]) -> Rule[_T]:
    """Have ``CorruptLog`` and ``TrimmedLog`` thrown into a rule by what it reads: it may go on."""
    answer: Any = None
    thrown: Exception | None = None
    while True:
        try:
            step = rule.send(answer) if thrown is None else rule.throw(thrown)
        except StopIteration as stop:
            found: _T = stop.value
            return found
        answer, thrown = None, None
        try:
            answer = yield Try(step) if isinstance(step, Get | Scan | Read) else step
        except Refused as refused:
            thrown = refused
        if isinstance(answer, TrimmedLog | CorruptLog):
            thrown = answer
