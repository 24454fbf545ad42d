"""The settings of a server: what is let in, from whom, and how much of it. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rifl._grpc.certificates import name_of
from sharedlog._core.names import NameKind

# The rights to names, each a list of patterns.
_LISTS = ("publish", "follow", "names", "consume", "play")


class BadSettings(ValueError):
    """A file that says something else than what a server can do."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much a server takes; of 0 any.

    ``followers``: streams that are followed at once; ``caller_followers``: of one caller;
    ``caller_unanswered``: calls of one caller in flight; ``caller_steps_per_s``: calls that leave
    something that is never removed (grants, fences, holds); ``stream_bytes_per_s``: what one
    caller publishes to one stream; ``producer_bytes_per_s``: what one producer publishes;
    ``stalled_s``: how long a follower may read nothing of what waits for it; ``message_s``: how
    long the message of a call may take.
    """

    followers: int = 1000
    caller_followers: int = 100
    caller_unanswered: int = 32
    caller_steps_per_s: float = 20.0
    stream_bytes_per_s: float = 0.0
    producer_bytes_per_s: float = 0.0
    stalled_s: float = 30.0
    message_s: float = 60.0


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What the callers that it names may do. ``peer``, ``token``: neither: all callers.

    ``peer``: a name in a certificate, as ``name_of`` spells it; ``token``: a token's name.

    ``publish``, ``follow``: streams; ``names``: of its own producers, followers and fences;
    patterns with ``*``. ``consume``: consumers whose holds and outputs are its. ``play``: players
    that it may be, and operate: these read every stream. ``admin``: everything.
    """

    peer: str = ""
    token: str = field(default="", repr=False)
    publish: tuple[str, ...] = ()
    follow: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    play: tuple[str, ...] = ()
    admin: bool = False

    def owners(self, kind: NameKind) -> tuple[str, ...]:
        """Return the owners of names of a kind that are its; of users' names, the names."""
        return {
            NameKind.USER: self.names,
            NameKind.CONSUMER: self.consume,
            NameKind.PLAYER: self.play,
        }.get(kind, ())


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``allow``: who may do what; None: every caller that is let in may do everything."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    allow: tuple[AccessRule, ...] | None = None


def read_settings(text: str) -> ServerSettings:
    """Read a TOML file with ``[limits]`` and ``[[allow]]``; raises ``BadSettings``."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"no TOML: {error}") from error
    _check_names(found, {"limits", "allow"}, "the file")
    allow = found.get("allow")
    if allow is not None and not isinstance(allow, list):
        raise BadSettings("allow is a list of tables: [[allow]]")
    return ServerSettings(
        _limits(found.get("limits", {})),
        None if allow is None else tuple(_entry(each) for each in allow),
    )


def read_tokens(text: str) -> dict[str, bytes]:
    """Read a file of lines ``NAME TOKEN``; raises ``BadSettings``, without a token in its text."""
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, *rest = line.split()
        if len(rest) != 1 or not rest[0].isascii() or len(rest[0]) < _SHORTEST_TOKEN:
            raise BadSettings(
                f"line {number} is not NAME TOKEN, of {_SHORTEST_TOKEN} characters of ASCII or more"
            )
        if name in found:
            raise BadSettings(f"line {number}: {name} is there already")
        found[name] = rest[0].encode()
    if not found:
        raise BadSettings("no token is in it")
    return found


_SHORTEST_TOKEN = 16


def _limits(given: Any) -> ServerLimits:
    if not isinstance(given, Mapping):
        raise BadSettings("limits is a table: [limits]")
    _check_names(given, {each.name for each in fields(ServerLimits)}, "[limits]")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise BadSettings(f"{name} is a number, 0 or more")
    return ServerLimits(**given)


def _entry(given: Any) -> AccessRule:
    if not isinstance(given, Mapping):
        raise BadSettings("allow is a list of tables: [[allow]]")
    _check_names(given, {each.name for each in fields(AccessRule)}, "[[allow]]")
    for name in _LISTS:
        value = given.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise BadSettings(f"{name} is a list of texts")
    for name in ("peer", "token"):
        if not isinstance(given.get(name, ""), str):
            raise BadSettings(f"{name} is a text")
    if not isinstance(given.get("admin", False), bool):
        raise BadSettings("admin is true or false")
    peer = given.get("peer", "")
    try:
        peer = peer and name_of(peer)
    except ValueError as error:
        raise BadSettings(f"peer: {error}") from error
    return AccessRule(
        peer,
        given.get("token", ""),
        **{name: tuple(given.get(name, ())) for name in _LISTS},
        admin=given.get("admin", False),
    )


def _check_names(given: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadSettings(f"{where} has no {unknown[0]!r}: {', '.join(sorted(known))}")
