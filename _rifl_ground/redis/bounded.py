"""Connections of redis-py's that wait no longer than the thread that uses them may."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

_T = TypeVar("_T")


class _Until(threading.local):
    """When the thread's waits are over, by the monotonic clock."""

    at = math.inf


_UNTIL = _Until()


def act_within(act: Callable[[], _T], seconds: float | None) -> _T:
    """Act, waiting on bounded connections for no longer than that in all; None: as they are.

    redis-py's TimeoutError is raised once that has passed.
    """
    # Also what an interrupted caller left is put right.
    _UNTIL.at = math.inf if seconds is None else time.monotonic() + seconds
    try:
        return act()
    finally:
        _UNTIL.at = math.inf


def bound(pool: Any) -> None:
    """Have a blocking pool's connections, but for those it has made, be bounded."""
    pool.connection_class = _bounded(pool.connection_class)


@functools.cache
def _bounded(kind: type) -> type:
    return (
        kind
        if issubclass(kind, _Bounded)
        else type(f"Bounded{kind.__name__}", (_Bounded, kind), {})
    )


class _Bounded:
    """Mixed into a class of connections; their own time-outs are the most that is waited."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own: Any = self
        self._usual = own.socket_timeout, own.socket_connect_timeout

    def _connect(self) -> Any:
        self._limit()
        return super()._connect()  # type: ignore[misc]  # the connection's

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command, and have its reply be waited for as long as there is time."""
        self._limit()
        super().send_packed_command(*args, **kwargs)  # type: ignore[misc]  # the connection's

    def _limit(self) -> None:
        own: Any = self
        limits: tuple[Any, ...] = self._usual
        if _UNTIL.at < math.inf:
            left_s = _UNTIL.at - time.monotonic()
            if left_s <= 0:
                raise redis.TimeoutError("the call's time is over")
            limits = tuple(left_s if each is None else min(each, left_s) for each in limits)
        if own.socket_timeout != limits[0]:
            own.socket_timeout, own.socket_connect_timeout = limits
            if own._sock is not None:
                own._sock.settimeout(limits[0])
