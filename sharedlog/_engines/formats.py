"""Formats of logs: one that is newer than this release is refused."""

from __future__ import annotations

from sharedlog._core.errors import CorruptLog, NewerFormat


def check_format(found: object, known: int, what: str) -> None:
    """Raise ``NewerFormat`` for a format above the one that is known here.

    ``found`` is its number, or digits; ``CorruptLog`` for anything else.
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
