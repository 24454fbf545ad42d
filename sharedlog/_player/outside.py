"""The outside of a player: its log, its targets, time and chance."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from sharedlog._aio.threads import Threads
from sharedlog._core.duty import WHO_BYTES
from sharedlog._core.following import Follower
from sharedlog._core.steps import Rule
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered
from sharedlog._player.declared import Target
from sharedlog._player.link import Link

_T = TypeVar("_T")


class LogCalls(Protocol):
    """Carries rules out at the log, while the event loop goes on."""

    async def run(self, rule: Callable[[], Rule[_T]]) -> _T:
        """Carry out a rule that may be run again, until the log answers, or its timeout passes."""

    async def once(self, rule: Rule[_T]) -> _T:
        """Carry a rule out, or raise what is known instead."""

    async def wait(self, follower: Follower, timeout_s: float) -> bool:
        """Wait until there may be something more to read; False: the timeout has passed."""

    def close(self) -> None:
        """Begin nothing more."""


class Outside(NamedTuple):
    """What one process that may lead has around it.

    ``log``: calls, so many at once; ``link``: to a target; ``now_us``: by the clock of the wall;
    ``draw``: at random, 0.0 to 1.0; ``who``: 8 random bytes; ``process``: for people, HOST:PID.
    """

    log: Callable[[int], LogCalls]
    link: Callable[[Target], Link]
    now_us: Callable[[], int]
    draw: Callable[[], float]
    who: bytes
    process: str


def real(place: Place) -> Outside:
    """Return what is outside of a player in this process."""
    return Outside(
        lambda threads: _ThreadCalls(place, threads),
        Link,
        lambda: time.time_ns() // 1000,
        random.random,
        secrets.token_bytes(WHO_BYTES),
        f"{socket.gethostname()}:{os.getpid()}",
    )


class _ThreadCalls:
    """Calls that block, each in a thread."""

    def __init__(self, place: Place, threads: int) -> None:
        self._place = place
        self._threads = Threads(threads)

    async def run(self, rule: Callable[[], Rule[_T]]) -> _T:
        return await self._threads.run(until_answered, self._place, rule)

    async def once(self, rule: Rule[_T]) -> _T:
        return await self._threads.run(self._place.run, rule)

    async def wait(self, follower: Follower, timeout_s: float) -> bool:
        return await self._threads.run(self._place.wait, follower, timeout_s)

    def close(self) -> None:
        self._threads.close()
