"""A replica to be killed: ``python -m tests.curp.log.writer URL REPLICA FILE [COUNT]``.

It leads when it can, and appends. FILE gets a line for every event, written straight
to the kernel, so that it survives the process: ``leader N``, ``try N BODY ...`` before an
append of these bodies, ``ack TAIL BODY ...`` after it, ``deposed N`` when a write was
refused. After COUNT appends it stops itself (SIGSTOP), with the next one just on its way.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
import uuid

from curp.log import open_engine
from curp.log._commits import GroupLog
from curp.log._errors import LeadershipOver, LeaseHeld, LogStopped, LogUnavailable
from curp.log._values import NewLogEntry

TERM_S = 0.5
_PAUSE_S = 0.01
_IDLE = threading.Event()


def main() -> None:
    """Lead and append until killed."""
    url, replica, name, *more = sys.argv[1:]
    stop_after = int(more[0]) if more else None
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    engine = _open(url)
    while True:
        try:
            number = engine.take_leadership(replica, "", term_s=TERM_S)
        except LeaseHeld as held:
            _IDLE.wait(min(held.remaining_s, TERM_S))
            continue
        except LogUnavailable:
            _IDLE.wait(_PAUSE_S)
            continue
        tell("leader", number)
        try:
            _lead(engine, number, tell, stop_after)
        except LeadershipOver:
            tell("deposed", number)
        except LogUnavailable:
            # No append is open: those are settled first.
            _IDLE.wait(_PAUSE_S)


def _open(url: str) -> GroupLog:
    while True:
        try:
            return open_engine(url)
        except LogUnavailable:
            _IDLE.wait(_PAUSE_S)


def _lead(engine: GroupLog, number: int, tell, stop_after: int | None) -> None:
    chance = random.Random()
    tail = engine.tail()
    renewed = time.monotonic()
    for count in itertools.count():
        bodies = [uuid.uuid4().hex for _ in range(chance.randint(1, 5))]
        tell("try", number, *bodies)
        if count == stop_after:
            signal.raise_signal(signal.SIGSTOP)
        tail = _append(engine, number, tail, bodies)
        tell("ack", tail, *bodies)
        if time.monotonic() > renewed + TERM_S / 4:
            renewed = time.monotonic()
            engine.renew_leadership(number, term_s=TERM_S)


def _append(engine: GroupLog, number: int, tail: int, bodies: list[str]) -> int:
    name = uuid.uuid4().bytes
    while True:
        try:
            return engine.append(
                [NewLogEntry(body.encode(), ("all", body[:1])) for body in bodies],
                configuration=number,
                expected_tail=tail,
                append_id=name,
            )
        except LogStopped:
            raise
        except LogUnavailable:
            _IDLE.wait(_PAUSE_S)


if __name__ == "__main__":
    main()
