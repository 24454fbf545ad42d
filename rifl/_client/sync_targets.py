"""A sync channel over connections: attempts go where the rule says (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from _rifl_ground.owned_lock import OneByOne, OwnedLock
from rifl._client.errors import reentrant
from rifl._client.grpc_channels import Connect
from rifl._client.routing import LEASE_SERVICE, ROUTED_TO, Awaited, Router
from rifl.core._calling.targets import Targets, best_connectivity

_Connectivity = Callable[[grpc.ChannelConnectivity], None]


class TargetsChannel(grpc.Channel):
    """One inner channel a target, below all retries: sends, and tells the router. Any thread.

    The channel of a target can be replaced by a new one, on a connection of its own.

    Connectivity is that of the best of the targets: READY if one of those given is.
    ``subscribe`` with ``try_to_connect`` connects to all of them.
    """

    def __init__(self, targets: Targets, connect: Connect[grpc.Channel]) -> None:
        self.router = Router(targets) if targets.several else None
        self._targets = targets
        self._connect = connect
        self._lock = OwnedLock(reentrant)
        self._closed = False
        self._channels = [connect(address) for address in targets.addresses]
        # To be closed with it, too.
        self._tried: grpc.Channel | None = None
        self._given = len(self._channels)
        self._watches: list[_Watch] = []

    def at(self, index: int) -> grpc.Channel:
        """Return the channel of a target, opened if it is a leader that was followed."""
        if index >= len(self._channels):
            with self._lock:
                addresses = self._targets.addresses
                while index >= len(self._channels):
                    if self._closed:
                        raise ValueError("Cannot invoke RPC on closed channel!")
                    self._channels.append(self._connect(addresses[len(self._channels)]))
        return self._channels[index]

    @property
    def current(self) -> int:
        """The index of the target that calls go to."""
        return self._targets.current

    def address(self, index: int) -> str:
        """Return the address of a target."""
        return self._targets.addresses[index]

    def another(self, index: int) -> grpc.Channel:
        """Open a channel to a target with a connection of its own; ``replace`` takes it."""
        channel = self._connect(self._targets.addresses[index], own=True)
        with self._lock:
            self._tried = channel
            closed = self._closed
        if closed:
            channel.close()
        return channel

    def replace(self, index: int, channel: grpc.Channel) -> grpc.Channel:
        """Send to a target by another channel from now on; return the one until now."""
        with self._lock:
            before, self._channels[index] = self._channels[index], channel
            self._tried = None
            watches = list(self._watches) if index < self._given else []
        for watch in watches:
            before.unsubscribe(watch.inner[index])
            channel.subscribe(watch.of(index))
        return before

    @property
    def unwatched(self) -> int:
        """How many targets have channels that may ``stop``; 0 if a subscriber watches."""
        return 0 if self._watches else len(self._channels)

    def stop(self, index: int) -> None:
        """Connect to a target no more, before the next call there: gRPC's channel is replaced."""
        channel = self._connect(self._targets.addresses[index])
        with self._lock:
            if self._closed:
                channel.close()
                return
            before, self._channels[index] = self._channels[index], channel
        before.close()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.unary_unary``."""
        return _Unary(self, method, lambda to: to.unary_unary(method, *args, **kwargs))

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.unary_stream``."""
        return _Streaming(self, method, lambda to: to.unary_stream(method, *args, **kwargs))

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.stream_unary``."""
        return _Unary(self, method, lambda to: to.stream_unary(method, *args, **kwargs))

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.stream_stream``."""
        return _Streaming(
            self, method, lambda to: to.stream_stream(method, *args, **kwargs), counted=False
        )

    def subscribe(self, callback: _Connectivity, try_to_connect: bool | None = False) -> None:
        """See ``grpc.Channel.subscribe``."""
        watch = _Watch(callback)
        with self._lock:
            self._watches.append(watch)
            channels = self._channels[: self._given]
        for index, channel in enumerate(channels):
            channel.subscribe(watch.of(index), bool(try_to_connect))

    def unsubscribe(self, callback: _Connectivity) -> None:
        """See ``grpc.Channel.unsubscribe``."""
        with self._lock:
            watch = next((each for each in self._watches if each.callback == callback), None)
            if watch is None:
                return
            self._watches.remove(watch)
        for index, inner in watch.inner.items():
            self._channels[index].unsubscribe(inner)

    def close(self) -> None:
        """Close every target's channel."""
        with self._lock:
            self._closed = True
            tried = self._tried
        for channel in self._channels:
            channel.close()
        if tried is not None:
            tried.close()

    def __enter__(self) -> TargetsChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """One method, with a multicallable for each target, made when first needed."""

    def __init__(
        self,
        channel: TargetsChannel,
        method: str,
        make: Callable[[grpc.Channel], Any],
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
        self._callables: dict[int, tuple[grpc.Channel, Any]] = {}

    def now(self) -> Any:
        """Return what sends now: gRPC's own multicallable where there is one target."""
        return self if self._router is not None else self._at(0)

    def _at(self, index: int) -> Any:
        channel = self._channel.at(index)
        found = self._callables.get(index)
        if found is None or found[0] is not channel:
            # Two threads may make one each: either will do.
            found = self._callables[index] = channel, self._make(channel)
        return found[1]

    def _choose(self) -> int:
        if self._router is None:
            return 0
        return self._router.targets.current if self._heartbeat else self._router.choose()

    def _send(self, index: int, send: Callable[[Any], Any]) -> Any:
        while True:
            inner = self._at(index)
            try:
                return send(inner)
            except ValueError:
                # Nothing is sent on a closed channel, which may have been replaced just now.
                if self._at(index) is inner:
                    raise

    def _await(self, index: int) -> object:
        """Note that a call waits for a target; return what ``_done`` takes."""
        mark = object()
        if self._awaited:
            self._awaited[index].calls[mark] = None
        return mark

    def _done(self, index: int, status: Any, mark: object) -> None:
        if self._awaited:
            awaited = self._awaited[index]
            awaited.calls.pop(mark, None)
            awaited.answers += status.code() is grpc.StatusCode.OK
        self._ended(index, status)

    def _ended(self, index: int, status: Any) -> None:
        if self._router is not None:
            self._router.ended(index, status, heartbeat=self._heartbeat)


class _Unary(_Method, grpc.UnaryUnaryMultiCallable, grpc.StreamUnaryMultiCallable):  # type: ignore[type-arg]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = self._choose()
        return self._answer(index, lambda inner: inner(*args, **kwargs))

    def with_call(self, *args: Any, **kwargs: Any) -> Any:
        index = self._choose()
        return self._answer(index, lambda inner: inner.with_call(*args, **kwargs))

    def future(self, *args: Any, **kwargs: Any) -> Any:
        index = self._choose()
        future = self._send(index, lambda inner: inner.future(*args, **kwargs))
        if self._router is not None:
            mark = self._await(index)
            # Before the sender of the next attempt is told.
            future.add_done_callback(lambda done: self._done(index, done, mark))
        return future

    def _answer(self, index: int, send: Callable[[Any], Any]) -> Any:
        """Send, and return the answer."""
        if not self._awaited:
            try:
                return self._send(index, send)
            except grpc.RpcError as error:
                self._ended(index, error)
                raise
        awaited, mark = self._awaited[index], object()
        try:
            awaited.calls[mark] = None
            answer = self._send(index, send)
            awaited.answers += 1
            return answer
        except grpc.RpcError as error:
            setattr(error, ROUTED_TO, index)
            self._ended(index, error)
            raise
        finally:
            awaited.calls.pop(mark, None)


class _Streaming(_Method, grpc.UnaryStreamMultiCallable, grpc.StreamStreamMultiCallable):  # type: ignore[type-arg]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = self._choose()
        call = self._send(index, lambda inner: inner(*args, **kwargs))
        if self._router is not None:
            mark = self._await(index)

            def over() -> None:
                self._done(index, call, mark)

            if not call.add_callback(over):
                over()
        return call


class _Watch:
    """One subscriber: what it was told last, and what the targets' channels said."""

    def __init__(self, callback: _Connectivity) -> None:
        self.callback = callback
        self.inner: dict[int, _Connectivity] = {}
        self._states: dict[int, grpc.ChannelConnectivity] = {}
        self._told: grpc.ChannelConnectivity | None = None
        # States arrive on one thread for each channel.
        self._news: OneByOne[tuple[int, grpc.ChannelConnectivity]] = OneByOne()

    def of(self, index: int) -> _Connectivity:
        """Return what to subscribe with to one target's channel."""

        def changed(state: grpc.ChannelConnectivity) -> None:
            self._news.post((index, state), self._changed)

        self.inner[index] = changed
        return changed

    def _changed(self, news: tuple[int, grpc.ChannelConnectivity]) -> None:
        index, state = news
        self._states[index] = state
        names = [each.name for each in self._states.values()]
        best = grpc.ChannelConnectivity[best_connectivity(names)]
        if best is not self._told:
            self._told = best
            self.callback(best)
