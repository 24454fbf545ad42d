"""Counts that users give: a count is a whole number, and no truth."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Whether this is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_count(
    name: str,
    value: object,
    least: int,
    *,
    optional: bool = False,
    error: type[Exception] = ValueError,
) -> None:
    """Raise ``error`` unless this is a whole number, ``least`` or more; ``optional``: or None."""
    if not (optional if value is None else is_whole(value) and value >= least):
        or_none = ", or None" if optional else ""
        raise error(f"{name}={value!r} must be a whole number, {least} or more{or_none}")


def check_counts(owner: Any, least: int, *names: str, error: type[Exception] = ValueError) -> None:
    """Do the same for fields of a dataclass; None is valid where it is the field's default."""
    defaults = {each.name: each.default for each in fields(owner)}
    for name in names:
        optional = defaults[name] is None
        check_count(name, getattr(owner, name), least, optional=optional, error=error)
