"""Callers: threads that end the rides of one hour after another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

import rifl
from examples.pipeline.v1 import pipeline_pb2, pipeline_pb2_grpc

__all__ = ["Callers", "Ride", "closing", "drawn"]

_FIRST = int(datetime(2031, 1, 1, tzinfo=UTC).timestamp())
_HOUR_S = 3600
_CALL_S = 120.0


class Ride(NamedTuple):
    """One ride; ``ended``: in seconds."""

    id: str
    rider: str
    ended: int
    cents: int


def drawn(hour: int, count: int, riders: int, dice: Random) -> list[Ride]:
    """Draw the rides that end within an hour."""
    return [
        Ride(
            f"ride {hour}.{number}",
            f"rider {dice.randrange(riders)}",
            _FIRST + hour * _HOUR_S + dice.randrange(_HOUR_S),
            dice.randrange(100, 3000),
        )
        for number in range(count)
    ]


def closing(hours: int) -> Ride:
    """Return a ride so long after these hours that all of them are billed."""
    return Ride("closing", "nobody", _FIRST + (hours + 2) * _HOUR_S, 0)


class Callers:
    """Threads that call; each call returns once its ride is there."""

    def __init__(self, address: str, threads: int = 4) -> None:
        self._address, self._count = address, threads
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._answered: list[Ride] = []

    @property
    def answered(self) -> int:
        """How many of the calls that were begun last were answered."""
        return len(self._answered)

    def begin(self, rides: Sequence[Ride]) -> None:
        """Begin to call with these."""
        self._answered = []
        self._threads = [
            threading.Thread(target=self._call, args=(rides[at :: self._count],))
            for at in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Return once all are answered; raises what a call raised."""
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self._errors:
            raise self._errors[0]

    def _call(self, rides: Sequence[Ride]) -> None:
        try:
            with contextlib.closing(rifl.connect(self._address)) as channel:
                stub = pipeline_pb2_grpc.RidesStub(channel)
                for ride in rides:
                    request = pipeline_pb2.Ride(id=ride.id, rider=ride.rider, cents=ride.cents)
                    request.ended.seconds = ride.ended
                    if stub.End(request, timeout=_CALL_S).cents != ride.cents:
                        raise RuntimeError(f"{ride} was answered wrongly")
                    self._answered.append(ride)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._errors.append(error)
