"""Times and durations as a shell gives them."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from datetime import UTC, datetime, timedelta

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._core.sealing import Seals
from sharedlog._log.following import After

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def duration(text: str) -> timedelta:
    """Return ``90``, ``90s``, ``15m``, ``2h`` or ``7d`` as a time."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 90s, 15m, 2h, 7d")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than any time") from error


def schedule(text: str) -> timedelta:
    """Return a duration as ``duration`` does, but not none at all."""
    found = duration(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: the interval must be positive")
    return found


def count(text: str) -> int:
    """Return a number, 0 or more."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number, 0 or more")
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError("the number has too many digits") from error


def some(text: str) -> int:
    """Return a number, 1 or more."""
    found = count(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: it is 1 or more")
    return found


def after(text: str) -> After:
    """Return ``beginning``, ``end``, a position, an ISO 8601 time, or ``15m`` (ago)."""
    if text in ("beginning", "end"):
        return text
    if "@" in text:
        return position(text)
    if _DURATION.fullmatch(text):
        try:
            return datetime.now(UTC) - duration(text)
        except OverflowError as error:
            raise argparse.ArgumentTypeError(f"{text!r} ago was before all time") from error
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: beginning, end, a position, a time (ISO 8601), or 15m for ago"
        ) from error
    return found if found.tzinfo else found.astimezone()


def position(text: str) -> Position:
    """Return a position."""
    try:
        return Position.parse(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def seals(text: str) -> Seals:
    """Return ``seal`` and ``unseal`` of a module, which is looked for in this directory, too."""
    sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(text)
    except ImportError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be imported: {error}") from error
    finally:
        sys.path.pop()
    seal, unseal = getattr(module, "seal", None), getattr(module, "unseal", None)
    if not callable(seal) or not callable(unseal):
        raise argparse.ArgumentTypeError(f"module {text!r} has no functions seal and unseal")
    return Seals(seal, unseal)


def header(text: str) -> tuple[str, str]:
    """Return ``NAME=VALUE`` as both."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
