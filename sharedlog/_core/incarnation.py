"""The incarnation of a log and the format of its rules, which it keeps (DESIGN-LOG §12)."""

from __future__ import annotations

import functools
import re
from typing import Any, TypeVar

from sharedlog._core.calling import portable
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import CorruptLog, InvalidRequest, LogForked, NewerFormat, NoSuchLog
from sharedlog._core.steps import Get, Rule

FORMAT = 1
INCARNATION, _FORMAT = "log/incarnation", "log/format"
_NUMBER = re.compile(rb"[1-9][0-9]{0,9}")
_NAME = re.compile(r"[0-9a-f]{16}")
_T = TypeVar("_T")


def new_log(incarnation: str) -> dict[str, bytes]:
    """Return the keys that a log has from its creation on.

    ``incarnation``: 16 random hexadecimal digits.
    """
    if not _NAME.fullmatch(incarnation):
        raise InvalidRequest(f"{incarnation!r} is no incarnation: 16 hexadecimal digits")
    return {INCARNATION: incarnation.encode(), _FORMAT: str(FORMAT).encode()}


@portable
def read_incarnation(expected: str | None = None) -> Rule[str]:
    """Return the log's incarnation; raises ``LogForked`` if another one is expected.

    Raises ``NoSuchLog`` if an engine has rows or keys of something else, ``NewerFormat``
    if a newer release made the log, ``CorruptLog`` if either makes no sense.
    """
    found = yield Get((INCARNATION, _FORMAT))
    name, version = found[INCARNATION], found[_FORMAT]
    if name is None or version is None:
        raise NoSuchLog("no log was created there")
    if not _NUMBER.fullmatch(version):
        raise CorruptLog("the log is damaged: it has no format number")
    if int(version) > FORMAT:
        raise NewerFormat(f"the log is of format {int(version)}, this release knows {FORMAT}")
    incarnation: str = name.decode(errors="replace")
    if not _NAME.fullmatch(incarnation):
        raise CorruptLog("the log is damaged: what it is known by is no incarnation")
    if expected is not None and incarnation != expected:
        raise forked(incarnation, expected)
    return incarnation


def forked(found: str, expected: str) -> LogForked:
    """Build what is raised where a log is of another incarnation than is expected."""
    return LogForked(
        f"the log is of incarnation {found}, and {expected} is expected: it is another log, or was "
        "restored and declared so. Nothing is written to it: open it again"
    )


# Each commit of a handle has it.
@functools.lru_cache(maxsize=256)
def condition_of_incarnation(incarnation: str) -> Condition:
    """Return what holds while the log is of this incarnation."""
    return Condition(INCARNATION, incarnation.encode())


def bound(commit: Commit, incarnation: str) -> Commit:
    """Return a commit that is refused once the log is of another incarnation.

    One that has this condition is returned unchanged: its rule judges it.
    """
    mine = condition_of_incarnation(incarnation)
    conditions, puts, entries, at_us = commit
    if mine in conditions:
        return commit
    return Commit((*conditions, mine), puts, entries, at_us)


def check_refused(refused: Refused, incarnation: str) -> None:
    """Raise ``LogForked`` if the incarnation is what refused a ``bound`` commit."""
    mine = condition_of_incarnation(incarnation)
    found = refused.found[mine.key]
    if found != mine.value:
        raise forked((found or b"none").decode(errors="replace"), incarnation) from refused


def of_incarnation(rule: Rule[_T], incarnation: str) -> Rule[_T]:
    """Have each commit of a rule raise ``LogForked``, and write nothing, in another incarnation.

    For a rule that is carried out in a transaction of a store's; ``Place`` does so for all others.
    """
    answer: Any = None
    refused: Refused | None = None
    while True:
        try:
            step = rule.send(answer) if refused is None else rule.throw(refused)
        except StopIteration as stop:
            found: _T = stop.value
            return found
        answer, refused = None, None
        if not isinstance(step, Commit):
            answer = yield step
            continue
        commit = bound(step, incarnation)
        try:
            answer = yield commit
        except Refused as error:
            if commit is not step:
                check_refused(error, incarnation)
            refused = error


def replace_incarnation(incarnation: str) -> Rule[None]:
    """Have a log that was restored from a backup be another one: an operator says so.

    From then on positions and producers made earlier are refused. Raises ``NoSuchLog``.
    """
    new = new_log(incarnation)[INCARNATION]
    while True:
        old = yield from read_incarnation()
        try:
            yield Commit((Condition(INCARNATION, old.encode()),), (Put(INCARNATION, new),))
        except Refused:
            continue
        return
