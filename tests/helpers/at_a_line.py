"""Something that happens at one line of ours: an interrupt, a signal, a collection.

Lines are counted as they run in the thread that enters ``at_a_line``, so that a loop over their
numbers goes through all that an operation does.
"""

from __future__ import annotations

import linecache
import opcode
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psycopg
import redis

import rifl

__all__ = ["DRIVERS", "OURS", "Interrupted", "Line", "at_a_line", "bounded", "interrupting"]

_ROOT = f"{Path(rifl.__file__).parent.parent}/"
OURS = tuple(
    f"{_ROOT}{name}/" for name in ("rifl", "curp", "sharedlog", "lease_server", "_rifl_ground")
)


# What drivers do, and what waits in threads.
DRIVERS = (
    *(f"{Path(each.__file__).parent}/" for each in (grpc, psycopg, redis)),
    threading.__file__,
    queue.__file__,
)


# CPython 3.13 and 3.14 look for signals at such a jump. If it ends a condition within a loop, their
# table of exceptions has a gap there: what ``with`` or ``finally`` has to do is not done.
_LOSES_BLOCKS = {opcode.opmap["JUMP_BACKWARD"]} if sys.version_info >= (3, 13) else frozenset()


class Interrupted(BaseException):
    """What a signal's handler raises, as ``KeyboardInterrupt``; nobody else does."""


class Line:
    """The line with a number: whether it came, and where it is."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0
        self.came = False
        self.where = ""

    def __repr__(self) -> str:
        return f"line {self.number} of the operation, {self.where or 'which it does not have'}"


@contextmanager
def at_a_line(
    number: int,
    act: Callable[[], None],
    only: Callable[[str, str], bool] | None = None,
    files: tuple[str, ...] = OURS,
) -> Iterator[Line]:
    """Have ``act`` called at a line, of those in the block; what it raises is raised there.

    ``only``: counts those for whose file and function it is true; ``files``: how their names begin.
    """
    line = Line(number)
    before: dict[int, int] = {}

    def trace(frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            file = code.co_filename
            if not file.startswith(files) or (only is not None and not only(file, code.co_name)):
                return None
            # Of a generator that goes on: where it does.
            before[id(frame)] = frame.f_lineno
            return trace
        if event != "line" or line.came:
            return trace
        at, last = frame.f_lineno, before.get(id(frame), 0)
        before[id(frame)] = at
        if _LOSES_BLOCKS and code.co_code[frame.f_lasti] in _LOSES_BLOCKS:
            return trace
        text = linecache.getline(code.co_filename, at).strip()
        # CPython looks for signals behind calls and jumps, and where a function begins: neither
        # where a block is left that ``with`` began, nor between what comes before a ``try`` and it.
        if text == "try:" or (at < last and text.startswith(("with ", "async with "))):
            return trace
        line.seen += 1
        if line.seen == number:
            line.came = True
            line.where = f"{code.co_filename.removeprefix(_ROOT)}:{at} ({code.co_name})"
            act()
        return trace

    sys.settrace(trace)
    try:
        yield line
    finally:
        sys.settrace(None)


def interrupting() -> None:
    """Raise ``Interrupted``."""
    raise Interrupted


def bounded(act: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Have a thread act, and return what it returns; a hang fails the test."""
    found: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    assert found, f"it did not end within {seconds:g} s"
    return found[0]
