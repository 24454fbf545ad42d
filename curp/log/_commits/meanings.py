"""The shared log's errors, told as a group's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from curp.log import _errors as ours
from sharedlog._core import errors as theirs

# The narrower before the wider.
_MEANINGS: tuple[tuple[type[theirs.LogError], Callable[[str], ours.LogError]], ...] = (
    (theirs.LogStopped, ours.EngineStopped),
    (theirs.LogFull, ours.EngineFull),
    (theirs.LogUnavailable, ours.EngineUnavailable),
    (theirs.CorruptLog, ours.CorruptLog),
    (theirs.NewerFormat, ours.CorruptLog),
    (theirs.InvalidRequest, ours.InvalidRequest),
    (theirs.NotDurable, ours.NotDurable),
    (theirs.NoSuchLog, ours.NoSuchLog),
    (theirs.LogExists, ours.LogExists),
)


@contextlib.contextmanager
def meanings() -> Iterator[None]:
    """Raise what the shared log raises as the errors of ``curp.log._errors``."""
    try:
        yield
    except theirs.LogError as error:
        raise meaning(error) from error


def meaning(error: theirs.LogError) -> ours.LogError:
    """Return what an error of the shared log's means for a group."""
    if isinstance(error, theirs.TrimmedLog):
        return ours.TrimmedLog(str(error), error.first)
    for kind, made in _MEANINGS:
        if isinstance(error, kind):
            return made(str(error))
    return ours.CorruptLog(f"{type(error).__name__}: {error}")
