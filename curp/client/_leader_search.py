"""The search for the leader among a channel's targets, as ``LeaderSearch`` decides."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from _rifl_ground.owned_lock import OwnedLock
from curp._core.leader_search import LeaderSearch
from curp.client._own_requests import Own
from curp.client._stubs import SEARCH_TIMEOUT_S, configuration_stub
from curp.v1 import curp_pb2
from rifl._client.errors import reentrant

# What a target says; and its place, if it is the leader that was looked for.
Told = Callable[[curp_pb2.GroupConfiguration, "int | None"], None]


class _Router(Protocol):
    """The part of ``rifl._client.routing.Router`` that is used here."""

    lost: Callable[[], None]

    @property
    def targets(self) -> Any:
        """Where calls may go."""

    def leads(self, index: int) -> bool:
        """Send calls there from now on."""


class _LeaderSearch:
    """What threads and event loops share. ``told`` is called with each answer."""

    def __init__(self, channel: Any, told: Told, own: Own) -> None:
        router: _Router | None = getattr(channel, "router", None)
        self.possible = router is not None
        self._channel = channel
        self._router = router
        self._told = told
        self._own = own
        self._rule = LeaderSearch()
        self.lock = OwnedLock(reentrant)
        self._closed = False
        self._waiting = False
        self._stubs: dict[int, Any] = {}
        if router is not None:
            # Weakly: the channel is not to keep itself alive.
            missed = weakref.WeakMethod(self.missed)

            def lost() -> None:
                found = missed()
                if found is not None:
                    found()

            router.lost = lost

    def target(self) -> int:
        """Return the place of the target that calls go to."""
        if self._router is None:
            return 0
        current: int = self._router.targets.current
        return current

    def missed(self) -> None:
        """Look for the leader, from now on until it is found. Never blocks."""
        now = time.monotonic()
        with self.lock:
            if self._closed:
                return
            self._rule.missed(now)
            begins = self._rule.begins(now)
        if begins:
            self._ask()
        self._wait()

    def close(self) -> None:
        """Ask no replica any more."""
        with self.lock:
            self._closed = True

    def _again(self) -> None:
        with self.lock:
            self._waiting = False
            begins = not self._closed and self._rule.begins(time.monotonic())
        if begins:
            self._ask()
        self._wait()

    def _wait(self) -> None:
        with self.lock:
            rest_s = self._rule.rest_s(time.monotonic())
            if self._waiting or self._closed or rest_s is None:
                return
            self._waiting = True
        self._call_later(rest_s)

    def _call_later(self, seconds: float) -> None:
        raise NotImplementedError

    def _ask(self) -> None:
        raise NotImplementedError

    def _places(self) -> range:
        return range(0 if self._router is None else len(self._router.targets.addresses))

    def _stub(self, place: int) -> Any:
        found = self._stubs.get(place)
        if found is None:
            found = self._stubs[place] = configuration_stub(self._channel.at(place), self._own)
        return found

    def _answered(self, place: int, reply: curp_pb2.GroupConfiguration) -> None:
        with self.lock:
            found = self._rule.told(reply.configuration, serves=reply.serves)
        if found and self._router is not None:
            self._router.leads(place)
        self._told(reply, place if found else None)


class SyncLeaderSearch(_LeaderSearch):
    """By threads of gRPC's, and a timer."""

    def _call_later(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._again)
        timer.daemon = True
        timer.start()

    def _ask(self) -> None:
        for place in self._places():
            try:
                asked = self._stub(place).future(
                    curp_pb2.ConfigurationRequest(), timeout=SEARCH_TIMEOUT_S
                )
            except ValueError:
                # The channel is closed.
                return
            asked.add_done_callback(partial(self._done, place))

    def _done(self, place: int, asked: Any) -> None:
        if not asked.cancelled() and asked.code() is grpc.StatusCode.OK:
            self._answered(place, asked.result())


class AioLeaderSearch(_LeaderSearch):
    """By tasks of an event loop. ``start`` begins one."""

    def __init__(self, channel: Any, told: Told, own: Own, start: Callable[[Any], Any]) -> None:
        super().__init__(channel, told, own)
        self._start = start

    def _call_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._again)

    def _ask(self) -> None:
        for place in self._places():
            self._start(self._ask_one(place))

    async def _ask_one(self, place: int) -> None:
        try:
            stub = self._stub(place)
            reply = await stub(curp_pb2.ConfigurationRequest(), timeout=SEARCH_TIMEOUT_S)
        except (grpc.RpcError, grpc.aio.UsageError):
            return
        self._answered(place, reply)
