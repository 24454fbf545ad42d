"""Many requests to Redis in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import redis

from rifl._stores.redis.scripts import Script
from rifl._stores.redis.steps import Step, steps_of
from rifl._stores.shared.backend import BackendError

# A pipeline's commands, and the scripts they need should Redis not have them.
Sent = list[tuple[Script, list[Any]]]


def rounds(
    requests: Sequence[Any],
    invocation: Callable[..., list[Any]],
    accept: Callable[[list[Any]], list[Any]],
) -> Generator[Sent, list[Any], list[Any]]:
    """Carry requests out in step: yields what to send, is sent the replies or errors.

    Returns for each request its reply, or the ``BackendError`` it failed with. Scripts are
    run in the order of the requests.
    """
    replies: list[Any] = [None] * len(requests)
    rules = [steps_of(request) for request in requests]
    moved: list[tuple[int, Any]] = [(at, None) for at in range(len(rules))]
    while True:
        asking: list[tuple[int, Step]] = []
        for at, reply in moved:
            try:
                asking.append((at, rules[at].send(reply)))
            except StopIteration as stop:
                replies[at] = stop.value
            except BackendError as error:
                replies[at] = error
        if not asking:
            return replies
        found = yield [(step[0], invocation(*step)) for _, step in asking]
        moved = []
        for (at, _), reply in zip(asking, found, strict=True):
            if isinstance(reply, redis.RedisError):
                replies[at] = BackendError(f"{type(reply).__name__}: {reply}")
            else:
                moved.append((at, accept(reply)))
