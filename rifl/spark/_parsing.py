"""Reads the texts of options: times, sizes, lists, flags. Pure.

All raise ``PlanError`` with the option's name, but ``seconds``, which raises ``ValueError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rifl.spark._errors import PlanError

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}


def text_of(value: Any) -> str:
    """Return a Python argument as the text of an option."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


def seconds(text: str) -> float:
    """Read a time such as ``90``, ``250ms``, ``12h`` or ``7d``; raises ``ValueError``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS or float(found[1]) == 0:
        raise ValueError(f"{text!r} is not a time such as 90s, 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def names(option: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Read a list of names, with commas or as JSON."""
    text = options.get(option, "").strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise PlanError(f"{option}: {text!r} is no list of names") from error
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise PlanError(f"{option}: {text!r} is no list of names")
        return tuple(found)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def pairs(option: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Read names and what each stands for: ``a=b,c=d``, or a JSON object."""
    text = options.get(option, "").strip()
    wanted = f'{option}: {text!r} is no list such as txn=reference, or {{"txn": "reference"}}'
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise PlanError(wanted) from error
    else:
        parts = [part.split("=") for part in text.split(",") if part.strip()]
        if not all(len(part) == 2 for part in parts):
            raise PlanError(wanted)
        given = {column.strip(): field.strip() for column, field in parts}
        if len(given) < len(parts):
            raise PlanError(f"{option}: a column is named twice")
    if not all(isinstance(name, str) and name for pair in given.items() for name in pair):
        raise PlanError(wanted)
    return tuple(given.items())


def flag(option: str, options: Mapping[str, str]) -> bool:
    """Read ``true`` or ``false``; false where it is not given."""
    text = options.get(option, "false").lower()
    if text not in ("true", "false"):
        raise PlanError(f"{option} is true or false, not {text!r}")
    return text == "true"


def optional_seconds(option: str, options: Mapping[str, str]) -> float | None:
    """Read a time, None where it is not given."""
    text = options.get(option)
    try:
        return None if text is None else seconds(text)
    except ValueError as error:
        raise PlanError(f"{option}: {error}") from error


def rate(option: str, options: Mapping[str, str]) -> float | None:
    """Read a positive number, None where it is not given."""
    text = options.get(option)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise PlanError(f"{option}: {text!r} is no number of rows a second")
    return found


def size(option: str, options: Mapping[str, str], default: int) -> int:
    """Read a number, with k or m behind it."""
    text = options.get(option)
    if text is None:
        return default
    found = re.fullmatch(r"\s*(\d+)\s*([km]?)b?\s*", text.lower())
    if found is None:
        raise PlanError(f"{option}: {text!r} is no number")
    return int(found[1]) * _SIZES[found[2]]
