"""An aio channel over several targets: each attempt goes where the rule says (DESIGN §3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_status import at_hand, finished_status
from rifl._client.routing import LEASE_SERVICE, Router
from rifl.core._calling.targets import best_connectivity


class AioSeveralTargets(grpc.aio.Channel):
    """As ``SeveralTargets``, used on its event loop only."""

    def __init__(self, router: Router, connect: Callable[[str], grpc.aio.Channel]) -> None:
        self.router = router
        self._connect = connect
        self._channels = [connect(address) for address in router.targets.addresses]
        self._given = len(self._channels)
        self._closed = False

    def at(self, index: int) -> grpc.aio.Channel:
        """Return the channel of a target, opened if it is a leader that was followed."""
        while index >= len(self._channels):
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            self._channels.append(self._connect(self.router.targets.addresses[len(self._channels)]))
        return self._channels[index]

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.aio.Channel.unary_unary``."""
        return _Method(self, method, lambda to: to.unary_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.aio.Channel.unary_stream``."""
        return _Method(self, method, lambda to: to.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.aio.Channel.stream_unary``."""
        return _Method(self, method, lambda to: to.stream_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.aio.Channel.stream_stream``."""
        return _Method(self, method, lambda to: to.stream_stream(method, *args, **kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See ``grpc.aio.Channel.get_state``: of the best of the targets."""
        return _best(self._states(try_to_connect))

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See ``grpc.aio.Channel.wait_for_state_change``."""
        while _best(states := self._states()) is last_observed_state:
            waits = [
                asyncio.ensure_future(channel.wait_for_state_change(state))
                for channel, state in zip(self._channels, states, strict=False)
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def channel_ready(self) -> None:
        """See ``grpc.aio.Channel.channel_ready``: until one of the targets is."""
        while (state := self.get_state(True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    async def close(self, grace: float | None = None) -> None:
        """Close every target's channel."""
        self._closed = True
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    async def __aenter__(self) -> AioSeveralTargets:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    def _states(self, try_to_connect: bool = False) -> list[grpc.ChannelConnectivity]:
        return [channel.get_state(try_to_connect) for channel in self._channels[: self._given]]


class _Method(
    grpc.aio.UnaryUnaryMultiCallable,  # type: ignore[type-arg]
    grpc.aio.UnaryStreamMultiCallable,  # type: ignore[type-arg]
    grpc.aio.StreamUnaryMultiCallable,  # type: ignore[type-arg]
    grpc.aio.StreamStreamMultiCallable,  # type: ignore[type-arg]
):
    """One method, with a multicallable for each target, made when first needed."""

    def __init__(
        self, channel: AioSeveralTargets, method: str, make: Callable[[grpc.aio.Channel], Any]
    ) -> None:
        self._channel = channel
        self._router = channel.router
        self._heartbeat = method.startswith(LEASE_SERVICE)
        self._make = make
        self._callables: dict[int, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = self._router.choose()
        found = self._callables.get(index)
        if found is None:
            found = self._callables[index] = self._make(self._channel.at(index))
        call = found(*args, **kwargs)
        # Before whoever sends the next attempt is told.
        call.add_done_callback(lambda done: self._ended(index, done))
        return call

    def _ended(self, index: int, call: Any) -> None:
        if at_hand(call.code()) is not grpc.StatusCode.OK:
            self._router.ended(index, finished_status(call), heartbeat=self._heartbeat)


def _best(states: list[grpc.ChannelConnectivity]) -> grpc.ChannelConnectivity:
    return grpc.ChannelConnectivity[best_connectivity([state.name for state in states])]
