"""Paths: ways for calls to travel that other packages bring (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from _rifl_ground.log import get_logger

_log = get_logger("rifl.client")

_GROUP = "rifl.paths"


def open_path(
    name: str,
    channel: Any,
    connect: Callable[[str], Any],
    conflict_keys: Mapping[str, Callable[[Any], Any]],
    group_path: str,
) -> Any:
    """Return the path of that name over a channel, None if it is not installed or fails.

    The entry point is called with ``channel``, sync or aio, which reaches the server
    that named the path, ``connect``, which opens such a channel to any ``host:port``, and
    ``conflict_keys`` and ``group_path`` as the application gave them.
    What it returns has ``unary_unary(method, inner)``, which gives a multicallable to
    send attempts by in the place of ``inner``, ``close()``, and ``retry``: the policy for
    applications that gave none. A call sent by ``inner`` instead is as safe, but may take
    longer.
    """
    # Not above: it takes a tenth of what a client imports, and few calls travel by a path.
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=name):
        try:
            return entry.load()(channel, connect, conflict_keys, group_path)
        except Exception:  # noqa: BLE001 - another package's, and calls go on without it
            _log.exception("path_failed", path=name)
            return None
    _log.warning("path_not_installed", path=name)
    return None
