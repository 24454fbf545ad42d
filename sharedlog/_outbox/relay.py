"""``Relay``: appends what waits in an outbox to the log, each message once, in its order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_called, check_text
from sharedlog._core.errors import (
    AlreadyCommitted,
    CorruptLog,
    Fenced,
    InvalidRequest,
    LogError,
    LogForked,
    NewerFormat,
    OutboxWentBack,
    PredecessorMismatch,
    StoreStopped,
)
from sharedlog._core.fences import Fence
from sharedlog._core.outbox import (
    Box,
    Mark,
    WaitingMessage,
    check_waiting,
    fitting,
    judge,
    reached,
    relayed,
)
from sharedlog._core.publishing import APPEND_BYTES, APPEND_ENTRIES
from sharedlog._core.streams import check_name
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._log.log import Log
from sharedlog._log.place import Place, forked
from sharedlog._log.resending import until_answered
from sharedlog._log.rounds import Rounds, tell
from sharedlog._outbox.box_database import BoxDatabase, open_database
from sharedlog._outbox.outbox import NAME, check_log

_log = get_logger("sharedlog")
# How long one waits for what comes before it says again that it works; how long it is then
# silent, at most, before another one takes over; and between two looks of one that does not work.
_WORK_S, _PATIENCE_S, _EVERY_S = 3.0, 10.0, 0.1
# After these a person has to look: it relays nothing more.
_FOR_GOOD = (
    *(CorruptLog, LogForked, NewerFormat),
    *(OutboxWentBack, PredecessorMismatch, StoreStopped),
)


class Relay:
    """A relay: it appends an outbox's messages to the log; ``sharedlog.relay`` returns it.

    A context manager: while it is entered a thread relays. Of several, in any processes, one works;
    another takes over when that one ends. It cannot be used in a forked child.
    """

    def __init__(
        self,
        database: BoxDatabase,
        log: Log,
        name: str,
        told: Callable[[int | LogError], None] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``sharedlog.relay``."""
        self._database = database
        self._place = place = log._place
        self._name = name
        self._told = told
        self._closing = threading.Event()
        # Whether the log is known to be where the outbox takes it to be.
        self._knows = False
        # In the thread, it waits for what comes.
        self._waits = False
        self._relayed = 0
        box = self._look(0)
        # Databases may have outboxes of one name.
        duty = f"relay/{name}/{box.id}"
        self._rounds = Rounds(
            *(place, duty, _EVERY_S, _PATIENCE_S, self._work, self._failed),
            clock=clock,
            for_good=_FOR_GOOD,
        )
        refuse_in_children(self, forked)

    @property
    def works(self) -> bool:
        """Whether this one of the outbox's relays does the work, as far as it knows."""
        return self._rounds.works

    @property
    def error(self) -> LogError | None:
        """The error that stopped it for good; None: it has not stopped."""
        return self._rounds.error

    def round(self) -> int:
        """Relay what waits, once, unless another relay works; return how many messages that was.

        Raises ``OutboxWentBack`` if the outbox's database was restored from a backup, and
        ``PredecessorMismatch`` if the log was. Raises ``CorruptLog``, ``LogForked``, and
        ``LogUnavailable`` if the log or the database does not answer. After any but the last it has
        stopped for good: another relay can take over, and this one raises the same again.
        """
        self._relayed = 0
        self._rounds.round()
        return self._relayed

    def once(self) -> int:
        """Relay what waits, once; return how many messages that was. Raises what ``round`` does.

        If another relay has the outbox, waits until that one shows that it works, and leaves the
        work to it. If that one stays silent, this one takes over.
        """
        relayed = self.round()
        while not (self.works or self._rounds.another_works or self._closing.wait(_EVERY_S)):
            relayed = self.round()
        return relayed

    def close(self) -> None:
        """Stop, after the append that runs; another relay takes over at once. Idempotent."""
        self._closing.set()
        self._rounds.close()
        self._database.close()

    def __enter__(self) -> Relay:
        """Begin; once. Raises ``InvalidRequest`` for one that has begun, or was closed."""
        self._waits = True
        self._rounds.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    def _work(self, fence: Fence, _: float) -> None:
        end = time.monotonic() + _WORK_S
        try:
            self._relay(fence)
            while self._waits and not self._stops() and time.monotonic() < end:
                self._database.wait(self._closing, end - time.monotonic())
                self._relay(fence)
        except Fenced:
            # It was taken for gone, and is no longer the one.
            self._knows = False
        except BaseException:
            self._knows = False
            raise

    def _relay(self, fence: Fence) -> None:
        """Append all that waits."""
        limits = self._place.engine.limits
        most = min(APPEND_ENTRIES, limits.entries)
        while not self._stops():
            box = self._look(most) if self._knows else self._learn(most)
            check_waiting(box)
            if not box.waiting:
                return
            batch = fitting(box.waiting, most, min(APPEND_BYTES, limits.append_bytes))
            try:
                self._append(box, batch, fence)
            except (AlreadyCommitted, PredecessorMismatch):
                # One of the two went back, or another relay was here.
                self._knows = False
                continue
            self._database.done(self._name, Mark(batch[-1].seq, batch[-1].chain))
            self._relayed += len(batch)
            self._tell(len(batch))

    def _append(self, box: Box, batch: Sequence[WaitingMessage], fence: Fence) -> None:
        until_answered(self._place, lambda: relayed(box, batch, fence))

    def _look(self, most: int, at: int = 0) -> Box:
        box = self._database.look(self._name, most, at)
        if box.incarnation != self._place.incarnation:
            raise LogForked(
                f"the outbox {self._name!r} is for a log of incarnation {box.incarnation}, not "
                f"{self._place.incarnation}: it is another one, or was restored and declared so. "
                "To relay what waits to this log: sharedlog relay --adopt"
            )
        return box

    def _learn(self, most: int) -> Box:
        """Compare the log with the outbox, and return the outbox.

        The log is read first, under the fence: no predecessor appends any more. It may still note
        what it had appended, so the outbox is read after that, as of one moment.
        """
        first = self._look(0)
        found = until_answered(self._place, lambda: reached(first))
        box = self._look(most, found.seq)
        judge(box, found)
        if found.seq != box.done.seq:
            # The predecessor crashed before it could note it.
            self._database.done(self._name, found)
            box = self._look(most)
        self._knows = True
        return box

    def _stops(self) -> bool:
        return self._closing.is_set() or self._place.closing.is_set()

    def _failed(self, error: LogError) -> None:
        if error is self.error:
            _log.critical(
                "relay_stopped", log=self._place.name, outbox=self._name, error=str(error)
            )
        self._tell(error)

    def _tell(self, found: int | LogError) -> None:
        tell(self._told, found)


def relay(
    database: str,
    log: Log,
    name: str = NAME,
    told: Callable[[int | LogError], None] | None = None,
) -> Relay:
    """Return a relay from an outbox of a database to ``log``, which works while it is entered.

    ``database``: ``sqlite:///FILE`` or ``postgresql://HOST/DATABASE``. The relay removes a message
    from the outbox once it is in the log; it is there once, whatever fails on the way. ``told`` is
    called with the number of messages of each append, and with errors.

    Raises ``NoSuchOutbox``, ``LogForked`` for an outbox of another log, and ``LogUnavailable`` if
    the database does not answer. Raises ``InvalidRequest`` for a log over gRPC: a relay opens the
    log itself.
    """
    check_name(name, "outbox")
    check_text(database, "database")
    check_log(log, Log)
    check_called(told, "told")
    refuse_elsewhere(log._place)
    opened = open_database(database)
    try:
        return Relay(opened, log, name, told)
    except BaseException:
        opened.close()
        raise


def refuse_elsewhere(place: Place) -> None:
    """Raise ``InvalidRequest`` for a log over gRPC."""
    if isinstance(place.engine, Elsewhere):
        raise InvalidRequest(
            "a relay works where the log is opened itself, not over gRPC: run it beside the server"
        )
