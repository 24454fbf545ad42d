"""The names that the log itself gives to holds and to producers, apart from users' names.

Such a name is ``@``, its kind, and whose it is, with a colon before each part:
``@consumer:billing``, ``@player:shop:mail:0``. No user's name begins so, and no part but the last
has a colon, so that two owners never share a name.
"""

from __future__ import annotations

import enum

from sharedlog._core.arguments import shown
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.streams import MAX_NAME_BYTES, check_name


class NameKind(enum.Enum):
    """What a name belongs to; ``USER``: to a program that chose it."""

    USER = ""
    CONSUMER = "consumer"
    PLAYER = "player"
    # Of what players bury: whichever player serves a target, its dead letters have one name.
    LETTERS = "deadletters"
    OUTBOX = "outbox"
    QUERY = "query"


_KINDS = {each.value: each for each in NameKind if each is not NameKind.USER}
# How many parts follow the kind in the name of a hold.
_OF_HOLDS = {NameKind.CONSUMER: 1, NameKind.QUERY: 1, NameKind.PLAYER: 3}


def own_name(kind: NameKind, *parts: str | int) -> str:
    """Return a name of the log's own."""
    return ":".join((f"@{kind.value}", *map(str, parts)))


def owner_of(name: str) -> tuple[NameKind, str]:
    """Return what a name belongs to, and the owner's name: of a user's name, itself."""
    kind, _, rest = name.removeprefix("@").partition(":")
    if not name.startswith("@") or kind not in _KINDS:
        return NameKind.USER, name
    return _KINDS[kind], rest.partition(":")[0]


def check_hold_name(name: str) -> None:
    """Raise ``InvalidRequest`` unless a hold can have this name, a user's or the log's own."""
    if isinstance(name, str) and name.startswith("@") and len(name) <= MAX_NAME_BYTES:
        kind, parts = owner_of(name)[0], name.split(":")[1:]
        if len(parts) == _OF_HOLDS.get(kind):
            for each in parts:
                check_name(each, kind.value)
            return
        raise InvalidRequest(
            f"{shown(name)} names no hold; the log's own are named @consumer:NAME, @query:NAME "
            "and @player:NAME:TARGET:INDEX"
        )
    check_name(name, "follower")
