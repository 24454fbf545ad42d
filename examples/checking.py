"""The check by which the examples prove what they claim."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["expect"]

_T = TypeVar("_T")


def expect(what: str, found: _T, expected: _T) -> None:
    """Print what was found; end the process with 1 if it is not what was expected."""
    if found != expected:
        raise SystemExit(f"FAILED  {what}: {found}, expected {expected}")
    print(f"ok  {what}: {found}")
