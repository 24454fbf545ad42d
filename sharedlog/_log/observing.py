"""The observers of a log that a program opened, kept from doing harm."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

from _rifl_ground.log import get_logger
from _rifl_ground.urls import split_url
from sharedlog._core.arguments import shown
from sharedlog._core.calling import CalledRule
from sharedlog._core.commit import Commit
from sharedlog._core.envelope import About
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.observer import LogObserver, LogReport
from sharedlog._core.position import Position
from sharedlog._core.producers import Appended, NewMessage
from sharedlog._core.spans import Pended
from sharedlog._core.steps import Rule, Step
from sharedlog._engines.driving import do
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._engines.engine import Engine

_log = get_logger("sharedlog")
_T = TypeVar("_T")


class LogObservers:
    """Those of one handle of a log. Any thread."""

    def __init__(self, log: str, observers: Sequence[LogObserver]) -> None:
        """``log``: its name for observers."""
        self.log = log
        self._observers = tuple(observers)
        self._failed: set[str] = set()

    @classmethod
    def of(cls, log: str, given: LogObserver | Sequence[LogObserver] | None) -> LogObservers | None:
        """Return the observers that a user gave as one; None if there are none."""
        found = (given,) if isinstance(given, LogObserver) else tuple(given or ())
        return cls(log, found) if found else None

    def attached(self, report: Callable[[], LogReport]) -> None:
        """Tell the observers that the log was opened."""
        self._each("attached", self.log, report)

    def detached(self, report: Callable[[], LogReport]) -> None:
        """Tell the observers that the handle was closed."""
        self._each("detached", self.log, report)

    def refused(self, error: BaseException) -> None:
        """Tell the observers of an error, by the name of its class."""
        self._each("refused", self.log, type(error).__name__)

    def caller_refused(self, kind: str, reason: str) -> None:
        """Tell the observers of a caller that the log's server did not let in."""
        self._each("caller_refused", self.log, kind, reason)

    def delivered(self, stream: str, messages: int, waited_s: float | None) -> None:
        """Tell the observers that a follower got messages."""
        self._each("delivered", self.log, stream, messages, waited_s)

    def act(self, engine: Engine, step: Step) -> Any:
        """Carry a step out; an append is told once it is in the log."""
        if not isinstance(step, Commit) or not step.entries:
            return do(engine, step)
        began = time.perf_counter()
        found = do(engine, step)
        seconds = time.perf_counter() - began
        size = sum(len(each.body) + sum(map(len, each.tags)) for each in step.entries)
        self._each("appended", self.log, len(step.entries), size, seconds)
        return found

    def asked(self, engine: Elsewhere, rule: Rule[_T]) -> _T:
        """Have a rule carried out where the log is; an append is told once it is in the log."""
        began = time.perf_counter()
        found = engine.carry_out(rule)
        new = isinstance(found, Pended) or (isinstance(found, Appended) and found.first is not None)
        if new and isinstance(rule, CalledRule):
            seconds = time.perf_counter() - began
            messages = _messages(rule)
            size = sum(len(each.envelope) + sum(map(len, each.tags)) for each in messages)
            # A marker is one entry.
            self._each("appended", self.log, len(messages) or 1, size, seconds)
        return found

    def published(
        self, stream: str, about: About | None, publish: Callable[[About | None], _T]
    ) -> _T:
        """Publish a message under the eyes of those who watch."""
        said, begun = self._begins(stream, about)
        try:
            found = publish(said)
        except BaseException as error:
            self._failed_to(begun, error)
            raise
        self._ended(begun, found, None)
        return found

    async def published_aio(
        self, stream: str, about: About | None, publish: Callable[[About | None], Awaitable[_T]]
    ) -> _T:
        """As ``published``, on an event loop."""
        said, begun = self._begins(stream, about)
        try:
            found = await publish(said)
        except BaseException as error:
            self._failed_to(begun, error)
            raise
        self._ended(begun, found, None)
        return found

    def _begins(self, stream: str, about: About | None) -> tuple[About | None, list[Any]]:
        begun: list[Any] = []
        for observer in self._observers:
            mine = None
            try:
                about, mine = observer.publish_begins(self.log, stream, about)
            except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                self._note("publish_begins", error)
            begun.append(mine)
        return about, begun

    def _failed_to(self, begun: list[Any], error: BaseException) -> None:
        self.refused(error)
        self._ended(begun, None, error)

    def _ended(self, begun: list[Any], found: object, error: BaseException | None) -> None:
        position = found if isinstance(found, Position) else None
        for observer, mine in zip(self._observers, begun, strict=True):
            try:
                observer.publish_ended(mine, position, error)
            except Exception as raised:  # noqa: BLE001 - as above
                self._note("publish_ended", raised)

    def _each(self, method: str, *arguments: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, method)(*arguments)
            except Exception as error:  # noqa: BLE001 - as above
                self._note(method, error)

    def _note(self, method: str, error: Exception) -> None:
        if method not in self._failed:
            self._failed.add(method)
            _log.error("observer_failed", method=method, error=repr(error))


def check_observers(given: LogObserver | Sequence[LogObserver] | None) -> None:
    """Raise ``InvalidRequest`` unless this is an observer, several, or None."""
    several = given if isinstance(given, Sequence) else () if given is None else (given,)
    if not all(isinstance(each, LogObserver) for each in several):
        raise InvalidRequest(f"observer={shown(given)}: sharedlog.LogObserver, or a list of them")


def _messages(call: CalledRule[Any]) -> Sequence[NewMessage]:
    for argument in call.arguments:
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], NewMessage):
            return argument
    return ()


def told_name(url: str) -> str:
    """Return a log's URL as it may be told: without user, password, and options but its name."""
    parts = split_url(url)
    host = parts.netloc.rpartition("@")[2]
    names = parse_qs(parts.query).get("log")
    shown = f"{parts.scheme}:{'//' if url.startswith(f'{parts.scheme}://') else ''}"
    return f"{shown}{host}{parts.path}" + (f"?log={names[0]}" if names else "")
