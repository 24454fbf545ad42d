"""A Redis server's settings, and what they mean for what it acknowledges (DESIGN §6).

``docs/reference/stores-redis.md`` tells why the settings that are not here do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import redis

from _rifl_ground.servers import Weakness, told

# What each has to be, and what it costs if it is not.
WANTED = {
    "appendonly": ("yes", "a restart loses what was acknowledged since the last snapshot"),
    "appendfsync": (
        "always",
        "a crash of the machine loses up to a second of what was acknowledged",
    ),
    "no-appendfsync-on-rewrite": (
        "no",
        "a crash of the machine while the append-only file is rewritten loses what was "
        "acknowledged meanwhile",
    ),
    "maxmemory-policy": ("noeviction", "what was acknowledged is evicted when memory is full"),
    "replica-read-only": (
        "yes",
        "a primary that became a replica acknowledges writes, and loses them when it follows the "
        "new primary",
    ),
}


class ServerNotDurable(redis.ResponseError):
    """A new connection leads to a server that may forget what it acknowledges.

    Of a kind that redis-py does not try again. ``found``: what is weak.
    """

    def __init__(self, found: Sequence[Weakness]) -> None:
        super().__init__(told(found))
        self.found = found


def weaknesses(settings: Mapping[str, str]) -> list[Weakness]:
    """Return what of a server's settings is weak; one that is missing is."""
    return [
        Weakness(f"{name} is {settings.get(name, 'unknown')}, not {wanted}", cost)
        for name, (wanted, cost) in WANTED.items()
        if settings.get(name) != wanted
    ]


def hidden(error: Exception) -> Weakness:
    """Return what it means that a server does not tell its settings, as some managed ones."""
    wanted = ", ".join(f"{name} {value}" for name, (value, _) in WANTED.items())
    return Weakness(
        f"the server does not tell its settings ({error})",
        f"unless it has {wanted}, it may lose what it acknowledged",
    )


def refuse_weak(settings: Mapping[str, str]) -> None:
    """Raise ``ServerNotDurable`` for settings that are weak."""
    if found := weaknesses(settings):
        raise ServerNotDurable(found)
