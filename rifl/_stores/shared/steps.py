"""Rules of a shared store, carried out over its backend: one, or many in step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from rifl._stores.shared.backend import Backend, BackendError
from rifl.core._serving.later import Later

# What yields requests, and is sent their replies.
Rule = Generator[Any, Any, Any]


class Steps(Later):
    """A rule of a shared store: a generator that yields requests.

    The caller decides how they are carried out: ``wait`` blocks, ``await``
    awaits, over a client of its own kind. So a store needs no second face, and a
    rule stands once. Errors of the backend are thrown into the rule.
    """

    __slots__ = ("_backend", "_rule")

    def __init__(self, backend: Backend, rule: Rule) -> None:
        self._backend = backend
        self._rule = rule

    def wait(self) -> Any:
        """Carry the rule out, blocking; returns or raises what it does."""
        return self._wait(self._backend.ask)

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> Any:
        """Do the same, and wait for no reply for longer than the call has: it is lost then."""
        left_s = remaining_s()
        if left_s is None or left_s > self._backend.longest_s:
            return self._wait(self._backend.ask)
        ask = self._backend.ask
        return self._wait(lambda request: ask(request, remaining_s()))

    def _wait(self, ask: Callable[[Any], Any]) -> Any:
        send, argument = self._rule.send, None
        try:
            while True:
                request = send(argument)
                try:
                    send, argument = self._rule.send, ask(request)
                except BackendError as error:
                    send, argument = self._rule.throw, error
        except StopIteration as stop:
            return stop.value
        finally:
            # Cancelled in between, a rule has to take back what it asked for.
            self._rule.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Carry the rule out on the running event loop."""
        send, argument = self._rule.send, None
        try:
            while True:
                request = send(argument)
                try:
                    reply = yield from self._backend.ask_async(request).__await__()
                    send, argument = self._rule.send, reply
                except BackendError as error:
                    send, argument = self._rule.throw, error
        except StopIteration as stop:
            return stop.value
        finally:
            # Cancelled in between, a rule has to take back what it asked for.
            self._rule.close()


class AllSteps(Later):
    """As ``Steps``, for many rules: what they ask at the same time is asked together.

    The result has each rule's result, or the error it raised.
    """

    __slots__ = ("_backend", "_rules")

    def __init__(self, backend: Backend, rules: Sequence[Rule]) -> None:
        self._backend = backend
        self._rules = rules

    def wait(self) -> list[Any]:
        """Carry the rules out, blocking."""
        return self._wait(self._backend.ask_all)

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> list[Any]:
        """Do the same, and wait for no reply for longer than the batch has."""
        left_s = remaining_s()
        if left_s is None or left_s > self._backend.longest_s:
            return self._wait(self._backend.ask_all)
        ask_all = self._backend.ask_all
        return self._wait(lambda requests: ask_all(requests, remaining_s()))

    def _wait(self, ask_all: Callable[[list[Any]], list[Any]]) -> list[Any]:
        steps = _in_step(self._rules)
        try:
            requests = next(steps)
            while True:
                requests = steps.send(ask_all(requests))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            # Cancelled in between, rules have to take back what they asked for.
            steps.close()

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Carry the rules out on the running event loop."""
        steps = _in_step(self._rules)
        try:
            requests = next(steps)
            while True:
                replies = yield from self._backend.ask_all_async(requests).__await__()
                requests = steps.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            steps.close()


def _in_step(rules: Sequence[Rule]) -> Generator[list[Any], list[Any], list[Any]]:
    """Yield what all rules ask; is sent a reply, or a ``BackendError``, for each."""
    results: list[Any] = [None] * len(rules)
    moved: list[tuple[int, Any]] = [(at, None) for at in range(len(rules))]
    try:
        while True:
            asking: list[int] = []
            requests: list[Any] = []
            for at, reply in moved:
                rule = rules[at]
                try:
                    if isinstance(reply, BackendError):
                        # One error may be that of many: each has a traceback of its own.
                        request = rule.throw(type(reply)(*reply.args))
                    else:
                        request = rule.send(reply)
                except StopIteration as stop:
                    results[at] = stop.value
                except Exception as error:  # noqa: BLE001 - its rule's; the others go on
                    results[at] = error
                else:
                    asking.append(at)
                    requests.append(request)
            if not asking:
                return results
            moved = list(zip(asking, (yield requests), strict=True))
    finally:
        for rule in rules:
            rule.close()
