"""An aio channel over connections: attempts go where the rule says (DESIGN §3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_status import at_hand, finished_status
from rifl._client.answers import USAGE_CLOSED
from rifl._client.grpc_channels import Connect
from rifl._client.routing import LEASE_SERVICE, ROUTED_TO, Awaited, Router
from rifl.core._calling.targets import Targets, best_connectivity


class AioTargetsChannel(grpc.aio.Channel):
    """As ``TargetsChannel``, used on its event loop only."""

    def __init__(self, targets: Targets, connect: Connect[grpc.aio.Channel]) -> None:
        self.router = Router(targets) if targets.several else None
        self._targets = targets
        self._connect = connect
        self._channels = [connect(address) for address in targets.addresses]
        self._given = len(self._channels)
        self._closed = False
        self._watches = 0

    def at(self, index: int) -> grpc.aio.Channel:
        """Return the channel of a target, opened if it is a leader that was followed."""
        while index >= len(self._channels):
            if self._closed:
                raise grpc.aio.UsageError(USAGE_CLOSED)
            self._channels.append(self._connect(self._targets.addresses[len(self._channels)]))
        return self._channels[index]

    @property
    def current(self) -> int:
        """The index of the target that calls go to."""
        return self._targets.current

    def address(self, index: int) -> str:
        """Return the address of a target."""
        return self._targets.addresses[index]

    def another(self, index: int) -> grpc.aio.Channel:
        """Open a channel to a target with a connection of its own."""
        return self._connect(self._targets.addresses[index], own=True)

    def replace(self, index: int, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        """Send to a target by another channel from now on; return the one until now."""
        before, self._channels[index] = self._channels[index], channel
        return before

    @property
    def unwatched(self) -> int:
        """As the sync channel's."""
        return 0 if self._watches else len(self._channels)

    def stop(self, index: int) -> grpc.aio.Channel:
        """As the sync channel's; return the one until now, to be closed."""
        return self.replace(index, self._connect(self._targets.addresses[index]))

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
        return _Method(
            self, method, lambda to: to.stream_stream(method, *args, **kwargs), counted=False
        )

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See ``grpc.aio.Channel.get_state``: of the best of the targets."""
        return _best(self._states(try_to_connect))

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See ``grpc.aio.Channel.wait_for_state_change``."""
        self._watches += 1
        try:
            while _best(states := self._states()) is last_observed_state:
                await self._change(states)
        finally:
            self._watches -= 1

    async def _change(self, states: list[grpc.ChannelConnectivity]) -> None:
        waits = [
            asyncio.ensure_future(channel.wait_for_state_change(state))
            for channel, state in zip(self._channels, states, strict=False)
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        # One that was replaced is closed, and says so.
        await asyncio.gather(*waits, return_exceptions=True)

    async def channel_ready(self) -> None:
        """See ``grpc.aio.Channel.channel_ready``: until one of the targets is."""
        while (state := self.get_state(True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    async def close(self, grace: float | None = None) -> None:
        """Close every target's channel."""
        self._closed = True
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    async def __aenter__(self) -> AioTargetsChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
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
        self,
        channel: AioTargetsChannel,
        method: str,
        make: Callable[[grpc.aio.Channel], Any],
        *,
        counted: bool = True,
    ) -> None:
        self._channel = channel
        self._router = channel.router
        self._heartbeat = method.startswith(LEASE_SERVICE)
        self._awaited: Sequence[Awaited] = ()
        # Calls with both streams are open for as long as the application likes.
        if channel.router is not None and counted and not self._heartbeat:
            self._awaited = channel.router.awaited
        self._make = make
        # With the channels that they are of.
        self._callables: dict[int, tuple[grpc.aio.Channel, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        router = self._router
        if router is None:
            return self._at(0)(*args, **kwargs)
        index = router.targets.current if self._heartbeat else router.choose()
        call = self._at(index)(*args, **kwargs)
        setattr(call, ROUTED_TO, index)
        awaited, mark = self._awaited[index] if self._awaited else Awaited(), object()
        awaited.calls[mark] = None

        def over(done: Any) -> None:
            awaited.calls.pop(mark, None)
            self._ended(router, index, done, awaited)

        # Before the sender of the next attempt is told.
        call.add_done_callback(over)
        return call

    def now(self) -> Any:
        """Return what sends now: gRPC's own multicallable where there is one target."""
        return self if self._router is not None else self._at(0)

    def _at(self, index: int) -> Any:
        channel = self._channel.at(index)
        found = self._callables.get(index)
        if found is None or found[0] is not channel:
            found = self._callables[index] = channel, self._make(channel)
        return found[1]

    def _ended(self, router: Router, index: int, call: Any, awaited: Awaited) -> None:
        if at_hand(call.code()) is grpc.StatusCode.OK:
            awaited.answers += 1
        else:
            router.ended(index, finished_status(call), heartbeat=self._heartbeat)


def _best(states: list[grpc.ChannelConnectivity]) -> grpc.ChannelConnectivity:
    return grpc.ChannelConnectivity[best_connectivity([state.name for state in states])]
