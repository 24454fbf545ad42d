"""The arguments of users: what is of another type or range is refused before anything is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from _rifl_ground.numbers import is_whole
from sharedlog._core.errors import InvalidRequest


def check_whole(value: object, what: str, least: int, most: int) -> None:
    """Raise ``InvalidRequest`` unless this is a whole number (and no truth) in this range."""
    if not is_whole(value) or not least <= value <= most:
        raise InvalidRequest(f"{what}={shown(value)}: it is a whole number, {least} to {most}")


def check_time(value: object, what: str, *, positive: bool = False) -> None:
    """Raise ``InvalidRequest`` unless this is a ``timedelta``, 0 or more."""
    if not isinstance(value, timedelta):
        raise InvalidRequest(f"{what}={shown(value)}: it is a timedelta")
    if value < timedelta(0) or (positive and not value):
        least = "more than 0" if positive else "0 or more"
        raise InvalidRequest(f"{what}={value}: it is a time, {least}")


def check_seconds(value: object, what: str) -> None:
    """Raise ``InvalidRequest`` unless this is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidRequest(f"{what}={shown(value)}: it is a number of seconds")


def check_text(value: object, what: str) -> None:
    """Raise ``InvalidRequest`` unless this is a text that UTF-8 has."""
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(f"{what}={shown(value)}: it is a text")


def check_truth(value: object, what: str) -> None:
    """Raise ``InvalidRequest`` unless this is True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{what}={shown(value)}: it is True or False")


def check_called(value: Callable[..., Any] | None, what: str) -> None:
    """Raise ``InvalidRequest`` unless this can be called, or is None."""
    if value is not None and not callable(value):
        raise InvalidRequest(f"{what}={shown(value)}: it is a function")


def shown(value: object) -> str:
    """Return what was given as an error shows it."""
    return f"{value!r:.200}"
