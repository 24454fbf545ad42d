"""The configuration of a player in a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from datetime import datetime, timedelta
from typing import Any

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._player.declared import Target

_FIELDS = {each.name: each.default is dataclasses.MISSING for each in dataclasses.fields(Target)}
_TIMES = {"patience", "linger"}
_OPTIONS = {"log_name", "dead_letters", "takeover"}


def read_config(text: str) -> tuple[list[Target], dict[str, Any]]:
    """Return targets, and a player's arguments; raises ``InvalidRequest`` for what cannot be.

    Times are in seconds. Fields are those of ``Target``, in tables ``[[target]]``.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"no TOML: {error}") from None
    targets = data.pop("target", [])
    if not isinstance(targets, list) or not all(isinstance(each, dict) for each in targets):
        raise InvalidRequest("targets are tables: [[target]]")
    _check_known(data, _OPTIONS, "the file")
    if "takeover" in data:
        data["takeover"] = _time(data["takeover"], "takeover")
    if not targets:
        raise InvalidRequest("there is no target: declare each in a table [[target]]")
    return [_target(each) for each in targets], data


def _target(given: dict[str, Any]) -> Target:
    name = given.get("name", "?")
    _check_known(given, set(_FIELDS), f"target {name!r}")
    if lacking := [key for key, needed in _FIELDS.items() if needed and key not in given]:
        raise InvalidRequest(f"target {name!r} has no {' and no '.join(lacking)}: each needs one")
    found: dict[str, Any] = {
        key: _time(value, key) if key in _TIMES else value for key, value in given.items()
    }
    start = found.get("start")
    if isinstance(start, str) and "@" in start:
        found["start"] = Position.parse(start)
    elif isinstance(start, datetime) and start.tzinfo is None:
        raise InvalidRequest(f"target {name!r}: a time without a zone could be any")
    try:
        return Target(**found)
    except (TypeError, AttributeError) as error:
        raise InvalidRequest(f"target {name!r}: {error}") from None


def _check_known(given: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidRequest(f"{unknown[0]!r} in {where} is none of {', '.join(sorted(known))}")


def _time(value: object, name: str) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} = {value!r}: seconds are a number")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise InvalidRequest(f"{name} = {value!r}: more seconds than there are") from None
