"""Formats of logs, and the error by which one that is read elsewhere is told."""

from __future__ import annotations

from sharedlog._core.errors import CorruptLog, LogError, NewerFormat


class OlderFormat(LogError):
    """The log is of an earlier format, which another engine reads."""


def check_format(found: object, known: int, what: str) -> None:
    """Raise unless a log has the format that is known here: ``found`` is its number, or digits.

    ``CorruptLog`` for no number, ``NewerFormat``, ``OlderFormat``.
    """
    try:
        number = int(found)  # type: ignore[call-overload]  # whatever a store gave
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise CorruptLog(f"{what} is damaged: it has no format number")
    if number > known:
        raise NewerFormat(
            f"{what} has format {number}, written by a newer release; this one knows {known}"
        )
    if number < known:
        raise OlderFormat(f"{what} has format {number}")
