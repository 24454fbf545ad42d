"""Awaiting a consumer: read your writes (DESIGN-LOG §14, T7)."""

from __future__ import annotations

import time
from datetime import timedelta

from sharedlog._core.consumer.members import check_follows
from sharedlog._core.consumer.names import hold_name
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._core.streams import check_name, tag_of
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._log.log import Log

_LOOK_S = 0.02
TIMEOUT = timedelta(seconds=30)


def await_consumer(
    log: Log, name: str, stream: str, position: Position, timeout: timedelta = TIMEOUT
) -> bool:
    """Wait until a consumer has committed its effects through a message; False: it has not yet.

    ``position``: of a message of ``stream``, as ``log.publish`` returned it. The consumer's holds
    tell of a commit about half a second later, also over gRPC. Raises ``LogForked`` for a position
    of another log, ``NoSuchStream``, and ``InvalidRequest`` for a stream that the consumer does
    not follow. Over gRPC that is unknown, and the result is False; a server with rights asks for
    ``consume`` (``NotAllowed``).
    """
    if not isinstance(position, Position):
        raise InvalidRequest(
            f"position={position!r:.100}: give the position that log.publish returned"
        )
    if not isinstance(timeout, timedelta):
        raise InvalidRequest(f"timeout={timeout!r:.100} must be a timedelta")
    check_name(name, "consumer")
    log._placing.stream(stream)
    if not isinstance(log._place.engine, Elsewhere):
        log._place.run(check_follows(name, stream))
    position.check_incarnation(log.incarnation)
    tag, end = tag_of(stream, position.substream), time.monotonic() + timeout.total_seconds()
    while True:
        holds = {each.tag: each for each in log.holds(hold_name(name))}
        if tag in holds and holds[tag].place >= (position.lsn, position.ordinal):
            return True
        left_s = end - time.monotonic()
        if left_s <= 0:
            return False
        log._place.closing.wait(min(_LOOK_S, left_s))
