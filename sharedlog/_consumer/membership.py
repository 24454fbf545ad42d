"""The membership of a process in a consumer: a thread says that it is there, while it is."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from sharedlog._core.consumer.members import join, part, renew, term_s
from sharedlog._core.errors import InvalidRequest, LogError
from sharedlog._log.place import Place

# A process that says nothing for a term is taken for gone; it says so several times in one.
_RENEWALS = 4


class Membership:
    """Says that this process is there; a thread does so again and again, while its run goes on."""

    def __init__(
        self,
        place: Place,
        name: str,
        who: str,
        streams: bytes,
        term_s: float,
        run_is_over: Callable[[], bool],
    ) -> None:
        """Nothing is said yet.

        ``run_is_over``: asked by the thread: a signal's exception can end a run before ``part``.
        """
        self._place = place
        self._name = name
        self.who = who
        self._streams = streams
        self._term_s = term_s
        self._run_is_over = run_is_over
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
        says = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()
        self._says = says
        self._place.run(join(self._name, self.who, says, self._streams, self._term_s))

    def start(self) -> None:
        """Start a thread that renews the membership."""
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
        self._place.run(part(self._name, self.who))

    def _renew(self) -> None:
        while not self._closing.wait(self._term_s / _RENEWALS):
            if self._run_is_over():
                with suppress(LogError):
                    self._place.run(part(self._name, self.who))
                return
            self.beside()
            try:
                lasts_s = term_s(self._term_s, self.longest_run_s())
                self._place.run(renew(self._name, self.who, self._says, self._streams, lasts_s))
            except InvalidRequest as error:
                self.error = error
                return
            except LogError:
                # Where it lasts, others take over; this one learns of it by its fences.
                continue
