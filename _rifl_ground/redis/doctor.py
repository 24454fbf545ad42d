"""A look at a Redis before a start, which only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import redis

from _rifl_ground.findings import Checkup
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.rights import lacking

# Of maxmemory, or of the machine's memory where there is none.
_MUCH = 0.9


def look_at_servers(checkup: Checkup, clients: Clients, address: RedisAddress) -> None:
    """Judge settings, room and clock of each server that is written."""
    checkup.weaknesses(clients.found_weak(), address.durability)
    for name, ask in _servers(clients, address):
        try:
            about = ask(clients.blocking.info)
        except redis.exceptions.NoPermissionError:
            # A start needs this right, and ``look_at_rights`` names it.
            continue
        _look_at_state(checkup, name, about)
        _look_at_memory(checkup, name, about)
        if most := int(about.get("maxclients", 0)):
            free = most - int(about["connected_clients"]) + 1
            checkup.connections(address.max_connections, free, f"{name}maxclients is {most}")
        checkup.clock(lambda ask=ask: _seconds(ask(clients.blocking.time)))  # type: ignore[misc]


def look_at_rights(
    checkup: Checkup,
    client: Any,
    keys: Iterable[str],
    scripts: Sequence[Any],
    guide: str,
    channel: str = "",
    outside: Sequence[Sequence[str]] = (),
) -> None:
    """Judge what the user may do; see ``lacking``. ``guide``: the page with the least of it."""
    missing = lacking(client, keys, scripts, channel, outside)
    if missing is None:
        checkup.note(
            "rights",
            "the server is older than Redis 7, which tells a user's rights only when they are "
            "tried: a start tries them",
        )
    elif missing:
        checkup.error(
            "rights",
            f"the user may not {', '.join(missing)}",
            f"Grant it: the least that is needed is in {guide}.",
        )


def _servers(
    clients: Clients, address: RedisAddress
) -> Iterator[tuple[str, Callable[[Callable[..., Any]], Any]]]:
    """Return the servers that are written, each as a name and a way to ask it."""
    if not address.clustered:
        yield "", lambda command: command()
        return
    for node in clients.blocking.get_primaries():
        yield (
            f"{node.host}:{node.port}: ",
            lambda command, node=node: command(target_nodes=node),  # type: ignore[misc]
        )


def _look_at_state(checkup: Checkup, name: str, about: dict[str, Any]) -> None:
    if about.get("role") == "slave":
        checkup.error(
            "server",
            f"{name}it is a replica, which cannot be written",
            "Give the primary's address, or Sentinel's.",
        )
    if about.get("aof_last_write_status", "ok") != "ok":
        checkup.error(
            "server",
            f"{name}it could not write its append-only file, and takes no writes until it can",
            "Make room on its disk.",
        )


def _look_at_memory(checkup: Checkup, name: str, about: dict[str, Any]) -> None:
    used, most = int(about.get("used_memory", 0)), int(about.get("maxmemory", 0))
    do = "Raise maxmemory, or give the server a machine with more memory."
    if most and used >= most:
        checkup.error(
            "memory", f"{name}maxmemory is {most} bytes, and {used} are used: it is full", do
        )
    elif most and used >= _MUCH * most:
        checkup.warning(
            "memory",
            f"{name}maxmemory is {most} bytes, and {used} are used: once it is full, calls and "
            "appends are refused",
            do,
        )
    machine = int(about.get("total_system_memory", 0))
    if not most and machine and used >= _MUCH * machine:
        checkup.warning(
            "memory",
            f"{name}there is no maxmemory, and {used} of the machine's {machine} bytes are used: "
            "the kernel kills the server once all are",
            do,
        )


def _seconds(told: Sequence[int]) -> float:
    return told[0] + told[1] / 1e6
