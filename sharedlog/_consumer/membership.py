"""The membership of a process in a consumer: a thread says that it is there, while it is."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from sharedlog._core.consumer.members import MemberTerm, join, part, renew, renew_all, term_s
from sharedlog._core.errors import InvalidRequest, LogError
from sharedlog._engines.engine import Engine
from sharedlog._log.place import Place

# A process that says nothing for a term is taken for gone. Renewals in a term; if an engine keeps
# terms for longer, a process waits for the rest, too, with so many renewals in what is kept.
_RENEWALS, _KEPT_RENEWALS = 4, 3
# A part of the time between two is drawn, so that processes do not renew in step.
_JITTER = 0.25
# One step renews so many memberships.
_AT_ONCE = 50
# Of this process, by the open log.
_memberships: weakref.WeakKeyDictionary[Engine, set[Membership]] = weakref.WeakKeyDictionary()


class Membership:
    """Says that this process is there; a thread does so again and again, while its run goes on.

    Who says so does it for all memberships of this process in the log, in one step.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        who: str,
        streams: bytes,
        term_s: float,
        run_is_over: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is said yet.

        ``run_is_over``: asked by the thread: a signal's exception can end a run before ``part``.
        """
        self._clock = clock
        # Draws from 0 to 1.
        self.dice: Callable[[], float] = random.random
        self._place = place
        self._name = name
        self.who = who
        self._streams = streams
        self._term_s = term_s
        self._run_is_over = run_is_over
        host = {"host": socket.gethostname(), "pid": os.getpid()}
        self._says = json.dumps(host).encode()
        # When it was said last.
        self._said_s = -math.inf
        self._together: set[Membership] = {self}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        # How long the handler that ran for longest of late has taken.
        self.longest_run_s: Callable[[], float] = lambda: 0.0
        # Done beside it, as often.
        self.beside: Callable[[], None] = lambda: None
        # Why this process must stop: the consumer follows other streams by now.
        self.error: LogError | None = None

    def join(self) -> None:
        """Become a member; raises ``InvalidRequest`` if the consumer runs as another one."""
        self._place.run(join(self._member(self._term_s)))

    def start(self) -> None:
        """Start a thread that renews the membership."""
        self._together = _memberships.setdefault(self._place.engine, self._together)
        self._together.add(self)
        self._thread = threading.Thread(
            target=self._renew, name=f"sharedlog-consumer-{self._name}", daemon=True
        )
        self._thread.start()

    def part(self) -> None:
        """End the membership; idempotent. Raises ``LogError`` if the log does not learn of it."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._leave()

    def _leave(self) -> None:
        # A step of another membership's that renews this one as well does not make it anew.
        self._together.discard(self)
        self._place.run(part(self._name, self.who))

    def _member(self, term_s: float) -> MemberTerm:
        return MemberTerm(self._name, self.who, self._says, self._streams, term_s)

    def _renew(self) -> None:
        while not self._closing.wait((pause_s := self._pause_s()) * (1 - _JITTER * self.dice())):
            if self._run_is_over():
                with suppress(LogError):
                    self._leave()
                return
            self.beside()
            if self._clock() - self._said_s < pause_s / 2:
                # Another membership of this process has said so.
                continue
            try:
                self._say()
            except InvalidRequest as error:
                self.error = error
                self._together.discard(self)
                return
            except LogError:
                # Where it lasts, others take over; this one learns of it by its fences.
                continue

    def _pause_s(self) -> float:
        kept_s = self._place.engine.limits.kept_s(self._term_s)
        later_s = kept_s - self._term_s
        return min(self._term_s / _RENEWALS + later_s, kept_s / _KEPT_RENEWALS)

    def _say(self) -> None:
        """Say that this process is there, for all of its memberships."""
        some = [self, *(self._together - {self})][:_AT_ONCE]
        said_s = self._clock()
        if not self._place.run(renew_all([each._lasting() for each in some])):
            self._place.run(renew(self._lasting()))
            some = [self]
        for each in some:
            each._said_s = said_s

    def _lasting(self) -> MemberTerm:
        return self._member(term_s(self._term_s, self.longest_run_s()))
