"""Machinery: the faults that each kind of deployment meets, and where each has to strike."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from chaos.sim.consumer.schedule import FAULTS as CONSUMER_FAULTS
from chaos.sim.consumer.schedule import REQUIRED as CONSUMER_REQUIRED
from chaos.sim.faults import Fault, Point
from chaos.sim.group_coincidences import FAILING
from chaos.sim.log.schedule import FAULTS as LOG_FAULTS
from chaos.sim.log.schedule import REQUIRED as LOG_REQUIRED
from chaos.sim.player.schedule import FAULTS as PLAYER_FAULTS
from chaos.sim.player.schedule import REQUIRED as PLAYER_REQUIRED
from chaos.sim.query.schedule import FAULTS as QUERY_FAULTS
from chaos.sim.query.schedule import REQUIRED as QUERY_REQUIRED

__all__ = [
    "AT_AN_OPERATION",
    "DURABLE",
    "FAULTS",
    "KINDS",
    "NETWORK",
    "OPERATOR",
    "REQUIRED",
    "STORE",
]

KINDS = ("memory", "sqlite", "replicas", "spark", "curp", "log", "query", "player", "consumer")
NETWORK = (
    Fault.LOSS,
    Fault.DELAY,
    Fault.DUPLICATE,
    Fault.RESET,
    Fault.PARTITION,
    Fault.PARTITION_TO,
    Fault.PARTITION_FROM,
)
_PROCESS = (
    Fault.CRASH,
    Fault.STOP,
    Fault.DRAIN,
    Fault.WALL_JUMP,
    Fault.ROTATE_SECRET,
    Fault.CLIENT_CRASH,
    Fault.CLIENT_STOP,
    Fault.CLIENT_LAPSE,
)
_DISK = (Fault.CRASH_DISK, Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC)
STORE = (Fault.STORE_STALL, Fault.STORE_RESTART, Fault.STORE_LOSS)
# What an operator asks a leader for, and where the leader can die of it.
OPERATOR = (Fault.WITNESS_CHANGE, Fault.TRANSFER, Fault.SNAPSHOT)
AT_AN_OPERATION = {
    Fault.WITNESS_CHANGE: (
        Point.NUMBERED,
        Point.RELISTED,
        Point.ANSWERED_FIRST,
        Point.ANSWERED_FIRST,
    ),
    Fault.TRANSFER: (Point.HANDING_OVER,),
    Fault.SNAPSHOT: (Point.SAVED, Point.TRIMMED),
}
# Which faults each kind of deployment can meet.
FAULTS: dict[str, tuple[Fault, ...]] = {
    "memory": NETWORK + _PROCESS,
    "sqlite": (*NETWORK, *_PROCESS, *_DISK, Fault.RESTORE),
    "replicas": NETWORK + _PROCESS + STORE,
    # Without its disk a server gives a session's name to a new one: nothing is promised.
    "spark": NETWORK + _PROCESS + _DISK[1:],
    "curp": (
        *NETWORK,
        *_PROCESS,
        Fault.STORE_STALL,
        Fault.STORE_LOSS,
        Fault.WITNESS_CRASH,
        *OPERATOR,
    ),
    "log": LOG_FAULTS,
    "query": QUERY_FAULTS,
    "player": PLAYER_FAULTS,
    "consumer": CONSUMER_FAULTS,
}
_RUNNING = (Point.HANDLER, Point.WAITING, Point.IDLE)
DURABLE = (*_RUNNING, Point.INTENT, Point.EFFECT, Point.RECORD)


def _cells(faults: Iterable[Fault], points: Iterable[Point]) -> frozenset[tuple[str, str]]:
    return frozenset((fault.value, point.value) for fault in faults for point in points)


def _on_the_way(lease: Point, lease_answer: Point) -> frozenset[tuple[str, str]]:
    asked = (Point.CALL, lease, Point.RESOLVE)
    answered = (Point.ANSWER, lease_answer, Point.RESOLVE_ANSWER)
    return (
        _cells((Fault.LOSS, Fault.DELAY), (*asked, *answered))
        # Cut off in both directions, a request meets it before there is an answer.
        | _cells((Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_TO), asked)
        | _cells((Fault.PARTITION_FROM,), answered)
        | _cells((Fault.RESET,), (Point.ANSWER,))
        | _cells((Fault.CLIENT_CRASH, Fault.CLIENT_STOP), (Point.UNANSWERED, Point.IDLE))
        | _cells((Fault.CLIENT_LAPSE,), (Point.UNANSWERED,))
        | _cells((Fault.WALL_JUMP, Fault.ROTATE_SECRET), (Point.IDLE,))
    )


_ON_THE_WAY = _on_the_way(Point.LEASE, Point.LEASE_ANSWER)
_OF_BATCHES = (
    _cells((Fault.LOSS, Fault.DELAY), (Point.BATCH, Point.BATCH_ANSWER))
    | _cells((Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_TO), (Point.BATCH,))
    | _cells((Fault.PARTITION_FROM, Fault.RESET), (Point.BATCH_ANSWER,))
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.BATCH_PART,))
)
_OF_DURABLE_BATCHES = _OF_BATCHES | _cells((Fault.CRASH, Fault.STOP), (Point.BATCH_RECORD,))
_OF_STREAMS = (
    _cells(
        (Fault.LOSS, Fault.DELAY),
        (Point.REQUEST_STREAM, Point.RESPONSE_STREAM, Point.RESPONSE_STREAM_MESSAGE),
    )
    | _cells((Fault.DUPLICATE, Fault.PARTITION), (Point.REQUEST_STREAM, Point.RESPONSE_STREAM))
    | _cells((Fault.PARTITION_TO,), (Point.REQUEST_STREAM,))
    | _cells((Fault.PARTITION_FROM,), (Point.RESPONSE_STREAM_MESSAGE,))
    | _cells((Fault.RESET,), (Point.REQUEST_STREAM_ANSWER, Point.RESPONSE_STREAM_MESSAGE))
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.HALF_READ, Point.HALF_MADE))
    | _cells((Fault.RESET,), (Point.BROKEN_OFF,))
)
# Where each fault has to strike in a few thousand runs, or the runs prove less than
# they say.
REQUIRED: dict[str, frozenset[tuple[str, str]]] = {
    "memory": _ON_THE_WAY
    | _OF_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), _RUNNING),
    "sqlite": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN), DURABLE)
    | _cells((Fault.CRASH,), (Point.ANSWERED, Point.EXPIRED))
    | _cells((Fault.RESTORE,), (Point.IDLE, Point.HANDLER))
    | _cells((Fault.CRASH,), (Point.FIRST,))
    | _cells((Fault.CRASH,), (Point.REPEATABLE_RAN, Point.REPEATABLE_ANSWERED))
    | _cells((Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC), (Point.COMMITTING,)),
    "replicas": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), DURABLE)
    | _cells((Fault.STOP,), (Point.REPEATABLE_RAN,))
    | _cells(STORE, (Point.CLAIM_REQUEST, Point.FINISH_REQUEST, Point.BEAT_REQUEST)),
    "curp": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.HANDLER, Point.RECORD, Point.IDLE))
    | _cells((Fault.CRASH,), (Point.ANSWERED_FIRST, Point.LOGGED, Point.RECOVERING))
    | _cells(OPERATOR, (Point.HANDLER, Point.RECORD, Point.ANSWERED_FIRST, Point.IDLE))
    | _cells((Fault.CRASH,), chain.from_iterable(AT_AN_OPERATION.values()))
    | frozenset(
        (fault.value, point.value) for fault, point in chain.from_iterable(FAILING.values())
    )
    | _cells((Fault.SNAPSHOT,), (Point.FROM_SNAPSHOT, Point.BEHIND_SNAPSHOT))
    | _cells((Fault.WITNESS_CRASH,), (Point.ANSWERED_FIRST,))
    | _cells((Fault.STOP,), (Point.RENEWING, Point.RENEWED))
    | _cells((Fault.LOSS, Fault.PARTITION), (Point.RECORDED, Point.WITNESS, Point.GROUP))
    | _cells((Fault.LOSS, Fault.DUPLICATE, Fault.PARTITION), (Point.OPERATOR,))
    | _cells((Fault.LOSS, Fault.PARTITION_FROM), (Point.OPERATOR_ANSWER,))
    | _cells((Fault.STORE_LOSS,), (Point.APPEND, Point.OTHER_REQUEST))
    | _cells((Fault.STORE_STALL,), (Point.OTHER_REQUEST,))
    | _cells((Fault.WITNESS_CRASH,), (Point.HOLDING, Point.IDLE)),
    "spark": _on_the_way(Point.SESSION, Point.SESSION_ANSWER)
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), DURABLE)
    | _cells((Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC), (Point.COMMITTING,)),
    "log": LOG_REQUIRED,
    "query": QUERY_REQUIRED,
    "player": PLAYER_REQUIRED,
    "consumer": CONSUMER_REQUIRED,
}
