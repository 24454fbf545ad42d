"""The driver of the log's rules at an engine, in the thread that calls it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, LogFull, TrimmedLog
from sharedlog._core.steps import Damaged, Ends, Get, Lsns, Read, Remove, Rule, Scan, Step, Try
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._engines.engine import Engine

_T = TypeVar("_T")


def carry_out(
    engine: Engine, rule: Rule[_T], act: Callable[[Engine, Step], Any] | None = None
) -> _T:
    """Drive a rule to its end and return what it found; blocks. Raises what ends the rule.

    ``act``: carries each step out, as ``do`` does.
    """
    if isinstance(engine, Elsewhere):
        return engine.carry_out(rule)
    # Here only its steps are of interest, not what it is (``CalledRule``).
    rule = iter(rule)
    act = act or do
    answer: Any = None
    refused: Refused | None = None
    while True:
        try:
            step = rule.send(answer) if refused is None else rule.throw(refused)
        except StopIteration as stop:
            found: _T = stop.value
            return found
        answer, refused = None, None
        try:
            answer = act(engine, step)
        except Refused as error:
            refused = error


def do(engine: Engine, step: Step) -> Any:
    """Carry one step out, a commit as of now; a refused one raises ``Refused``."""
    match step:
        case Commit():
            conditions, puts, entries, _ = step
            return engine.commit(Commit(conditions, puts, entries, time.time_ns() // 1000))
        case Get(keys):
            return engine.get(keys)
        case Scan(prefix):
            return engine.scan(prefix)
        case Read(after, limit, tag):
            return engine.read(after, limit, tag)
        case Damaged():
            return engine.damaged()
        case Try(asked):
            try:
                return do(engine, asked)
            except (CorruptLog, TrimmedLog) as error:
                return error
        case Ends():
            return Lsns(engine.first(), engine.tail())
        case Remove(through):
            try:
                return engine.remove(through)
            except LogFull as error:
                return error
