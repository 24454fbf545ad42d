"""The handlers of a consumer: the user's functions, by stream."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message as ProtobufMessage

from sharedlog._consumer.effects import Effects
from sharedlog._consumer.event_loop import EventLoop, note_tasks
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.message import Message

Handler = Callable[[Any, Effects], Any]
TimerFunction = Callable[[Effects], Any]
Kind = Any
_GENERATOR = "the function is a generator (it yields): called, it does nothing"


class _Handler(NamedTuple):
    read: Callable[[Message], Any]
    call: Handler
    batches: bool


class HandlerTimer(NamedTuple):
    """A function that is called again and again, by the processes' clocks."""

    every_s: float
    call: TimerFunction


class Handlers:
    """What is called with the messages of each stream."""

    def __init__(self, streams: Sequence[str]) -> None:
        """``streams``: the consumer's."""
        self._streams = streams
        self._by_stream: dict[str, _Handler] = {}
        self._timers: list[HandlerTimer] = []
        self._loop: EventLoop | None = None

    def add(self, stream: str, kind: Kind, call: Handler, *, batches: bool) -> None:
        """Have a function called with a stream's messages; see ``Consumer.on``."""
        if stream not in self._streams:
            raise InvalidRequest(f"the consumer follows {', '.join(self._streams)}, not {stream!r}")
        if stream in self._by_stream:
            raise InvalidRequest(f"{stream!r} has a handler: a stream has one")
        _check_function(call)
        self._by_stream[stream] = _Handler(_reading(kind), call, batches)

    def add_timer(self, every_s: float, call: TimerFunction) -> None:
        """Have a function called again and again; see ``Consumer.every``."""
        _check_function(call)
        self._timers.append(HandlerTimer(every_s, call))

    @property
    def timers(self) -> list[float]:
        """How often each of the timers is due, in seconds."""
        return [each.every_s for each in self._timers]

    def check(self) -> None:
        """Raise ``InvalidRequest`` unless every stream has a handler."""
        silent = [each for each in self._streams if each not in self._by_stream]
        if silent:
            raise InvalidRequest(
                f"no handler for {', '.join(silent)}: consumer.on({silent[0]!r}) names one"
            )

    def in_batches(self, stream: str) -> bool:
        """Whether a stream's function is called with lists."""
        return self._by_stream[stream].batches

    def name_of(self, stream: str) -> str:
        """Return the name of a stream's function."""
        return _name(self._by_stream[stream].call)

    def timer_name(self, timer: int) -> str:
        """Return the name of a timer's function."""
        return _name(self._timers[timer].call)

    def run(self, effects: Effects) -> None:
        """Call the handler of a message, or of a batch; one that is asynchronous to its end."""
        messages = effects.messages
        read, call, batches = self._by_stream[messages[0].stream]
        try:
            given = [read(each) for each in messages] if batches else read(messages[0])
            self._awaited(call(given, effects), effects)
        finally:
            effects.take_back()

    def fire(self, timer: int, effects: Effects) -> None:
        """Call the function of a timer, as ``run``."""
        try:
            self._awaited(self._timers[timer].call(effects), effects)
        finally:
            effects.take_back()

    def begin_apart(self) -> None:
        """Have several threads call functions: the asynchronous ones run on one event loop."""
        self._loop = EventLoop(apart=True)

    def interrupt(self) -> None:
        """Cancel asynchronous functions that several threads have called."""
        if self._loop is not None:
            self._loop.interrupt()

    def close(self) -> None:
        """Close the event loop, if there is one; in the thread that runs the consumer."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _awaited(self, found: Any, effects: Effects) -> None:
        if found is not None and inspect.isawaitable(found):
            self._run(found, effects)
        elif inspect.isgenerator(found) or inspect.isasyncgen(found):
            raise InvalidRequest(_GENERATOR)

    def _run(self, found: Any, effects: Effects) -> None:
        async def run() -> None:
            begun = note_tasks()
            try:
                await found
            finally:
                effects.end()
                await effects.leave()
                effects.left = sorted(_task_name(each) for each in begun if not each.done())

        if self._loop is None:
            self._loop = EventLoop(apart=False)
        # In the context of who calls, which may have a current span.
        self._loop.run(run())


def _name(call: Any) -> str:
    return f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', type(call).__name__)}"


def _task_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"


def _check_function(call: Any) -> None:
    """Raise ``InvalidRequest`` for what is no function, or one whose call would do nothing."""
    if not callable(call):
        raise InvalidRequest(f"{call!r:.100} is no function")
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise InvalidRequest(_GENERATOR)


def _reading(kind: Kind) -> Callable[[Message], Any]:
    if kind is None:
        return lambda message: message
    if kind is bytes:
        return lambda message: message.value
    if kind is str:
        return lambda message: message.text
    if isinstance(kind, type) and issubclass(kind, ProtobufMessage):
        return lambda message: message.parse(kind)
    if callable(kind):
        return lambda message: kind(message.value)
    raise InvalidRequest(
        f"{kind!r:.100} reads no message: bytes, str, a protobuf class, or a function of bytes, "
        "such as json.loads"
    )
