"""``Log``: what ``sharedlog.open`` returns; its methods delegate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_whole, shown
from sharedlog._core.catalog import Stream, all_streams, make_stream, name_of
from sharedlog._core.envelope import About, Value, called
from sharedlog._core.errors import (
    AppendUnknown,
    InvalidRequest,
    LogError,
    LogStopped,
    LogUnavailable,
)
from sharedlog._core.fences import Fence, check_fence_name, raise_fence
from sharedlog._core.holds import Hold, all_holds, drop, forget
from sharedlog._core.message import Message
from sharedlog._core.named import MAX_SEQ, check_any_name
from sharedlog._core.named import forget as forget_producer
from sharedlog._core.names import check_hold_name
from sharedlog._core.observer import LogReport
from sharedlog._core.position import Position
from sharedlog._core.reporting import report
from sharedlog._core.spans import retire as retire_producer
from sharedlog._core.steps import Rule
from sharedlog._core.trim import TrimOutcome
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._engines.engine import Engine, Joining
from sharedlog._log.append_in import joining, within
from sharedlog._log.following import AT_ONCE, After, Following, read_once
from sharedlog._log.place import Place, forked
from sharedlog._log.placing import Headers, Placing
from sharedlog._log.producer import Producer
from sharedlog._log.publisher import Publisher
from sharedlog._log.sweeper import SILENT, Sweeper
from sharedlog._log.trimming import Trimming, trim_once


def take_over(place: Place, name: str) -> Fence:
    """Raise a fence. Raises ``LogUnavailable``, and says for whom it has waited."""
    check_fence_name(name)
    end = time.monotonic() + place.timeout_s
    while True:
        whom = _make_way(place)
        try:
            return Fence(name, place.run(raise_fence(name)))
        except LogUnavailable as error:
            if not whom or isinstance(error, LogStopped):
                raise
            if time.monotonic() >= end:
                raise LogUnavailable(
                    f"{error}. The log waits for {whom}, whose transaction has to end: it may be "
                    "ended by an administrator (pg_terminate_backend)"
                ) from error


def _make_way(place: Place) -> str:
    engine = place.engine
    return engine.make_way() if isinstance(engine, Joining) else ""


_T = TypeVar("_T")
_log = get_logger("sharedlog")


class Log:
    """A log, opened by ``sharedlog.open`` or ``create``. Any thread; a context manager.

    Of one process: in a forked child its methods raise ``LogStopped``.
    """

    def __init__(self, url: str, place: Place) -> None:
        """Use ``sharedlog.open``."""
        self._url = url
        self._place = place
        self._publisher = Publisher(place)
        self._placing = Placing(place)
        refuse_in_children(self, forked)
        # For a served log, the observers of its server report it.
        if place.observers is not None and not isinstance(place.engine, Elsewhere):
            place.observers.attached(self._report)

    @property
    def incarnation(self) -> str:
        """Which log this is: drawn at its creation, part of every position."""
        return self._place.incarnation

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._engine.durability

    def stream(
        self, name: str, substreams: int | None = None, retention: timedelta | None = None
    ) -> Stream:
        """Create a stream, or find the one that has the name.

        ``substreams``: how many, 1 to 512 (default 8), which cannot be changed later. Messages with
        one key are in one substream, and ordered there. ``retention``: how long messages are kept
        at least (default: a day). If the stream exists, None fits any value, and another value than
        the stream's raises ``InvalidRequest``.
        """
        found = self._run(make_stream(name, substreams, retention))
        self._placing.learn(found)
        return found

    def streams(self) -> list[Stream]:
        """Return the streams of the log, by name."""
        return self._run(all_streams())

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> Position:
        """Append one message, and return its position once it is committed and durable.

        ``value``: bytes, a text, or a protobuf message; with its key, headers and up to 500 bytes
        of overhead a mebibyte at most. ``key``: messages of one key are in one substream, in the
        order in which they were appended; without one the substreams take turns. ``headers``: 64
        names at most. ``about``: further properties.
        Messages of threads that publish at the same time share an append.

        While the log does not answer, the same append is sent again, for the ``timeout`` of
        ``sharedlog.open``. Then raises ``AppendUnknown``: ``settle`` finds its outcome. ``LogFull``
        and ``LogUnavailable`` with ``appended`` False: the message is not in the log.
        ``LogStopped``: this handle is of no more use. ``InvalidRequest``: it is too large. Raises
        ``NoSuchStream``, and ``ReentrantUse`` (``appended`` False) if a logging handler, a
        finalizer or a signal handler publishes while its own thread does.
        """
        observers = self._place.observers
        if observers is None:
            return self._publisher.publish(self._placing.placed(stream, value, key, headers, about))
        return observers.published(
            name_of(stream),
            about,
            lambda said: self._publisher.publish(
                self._placing.placed(stream, value, key, headers, said)
            ),
        )

    def publish_call(
        self,
        stream: str | Stream,
        method: str,
        request: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> Position:
        """Publish a call: players call ``method`` with ``request``, once, at each target.

        ``method``: such as ``"/shop.v1.Inventory/Reserve"``; ``request``: its protobuf message, or
        the bytes of one. All else is as in ``publish``. With ``append_in`` or an outbox, set
        ``About.method`` instead.
        """
        return self.publish(stream, request, key, headers, called(method, request, about))

    def append_in(
        self,
        connection: Any,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Append a message in a transaction of the application, which commits it or rolls it back.

        ``connection`` has the transaction, in the same database as the log: the SQLite file, or
        the PostgreSQL database. It is a connection of sqlite3 or psycopg, a cursor of one,
        SQLAlchemy's ``Connection`` or ``Session`` over one, or what ``rifl.transaction`` yields.
        Once the transaction commits, the message is in the log, and as durable. After a rollback,
        also to a savepoint, it never is. Several messages of one transaction become visible
        together, in the order of the calls. ``fence``: as in ``producer``.

        Call it last: from then on other writers of the log wait for the transaction's end.

        Raises ``WrongTransaction`` for a connection in autocommit, to another database (use
        ``sharedlog.outbox`` there), or whose commits do not wait for the disk. Raises ``LogForked``
        if that database has another incarnation of the log, ``Fenced``, ``InvalidRequest`` and
        ``NoSuchStream`` as ``publish``, and ``LogUnavailable``, always with ``appended`` False.
        After an error nothing of this is in the log; the application ends the transaction.
        """
        place, placing = self._place, self._placing

        def append(said: About | None) -> None:
            placed = placing.placed(stream, value, key, headers, said)
            joining(place).append_in(connection, within(place, placed, fence))

        if place.observers is None:
            append(about)
        else:
            place.observers.published(name_of(stream), about, append)

    def settle(self, unknown: AppendUnknown) -> Position:
        """Return the position of a message after this log raised ``AppendUnknown`` for it.

        Raises ``AppendUnknown`` again while the outcome is unknown, or the error that refused it.
        """
        return self._publisher.settle(ticket_of(unknown))

    def producer(self, name: str | None = None, *, fence: Fence | None = None) -> Producer:
        """Return a producer of transactions.

        ``name``: its transactions are numbered, and each number is committed once among all
        programs that use the name, until an operator forgets it. ``fence``: all its commits are
        refused (``Fenced``) once another program has raised the fence again.
        """
        return Producer(self._place, self._placing, name, fence)

    def raise_fence(self, name: str) -> Fence:
        """Raise a fence, and return it: writers with a lower number append nothing more.

        ``name``: of letters, digits and ``_.-/:``, 180 at most. In PostgreSQL, ends sessions that
        hang in a transaction after ``append_in``; if that is not allowed, waits for them.
        """
        fence = take_over(self._place, name)
        _log.info("fence_raised", log=self._place.name, fence=name, number=fence.number)
        return fence

    def retire(self, producer: int) -> int:
        """End a producer, by its id, and return its highest seq: an operator's decision.

        What it has pending is rolled back, and its program gets ``ProducerRetired``. One that is
        retired already stays so. Raises ``UnknownProducer``.
        """
        check_whole(producer, "producer", 1, MAX_SEQ)
        seq = self._run(retire_producer(producer))
        _log.info("producer_retired", log=self._place.name, producer=producer, seq=seq)
        return seq

    def forget(self, name: str) -> int:
        """Forget a named producer, and return its highest seq: an operator's decision.

        0: there was none. The name can then be used anew, from seq 1 on. If its program commits
        earlier transactions again, they are in the log twice.
        """
        check_any_name(name)
        seq = self._run(forget_producer(name))
        if seq:
            _log.warning("producer_forgotten", log=self._place.name, name=name, seq=seq)
        return seq

    def sweeper(self, silent: timedelta = SILENT) -> Sweeper:
        """Return a context manager that rolls back transactions of crashed programs while entered.

        ``silent``: how long a producer with something pending must have appended nothing, as the
        sweeper measures it; up to a tenth more may pass. Each process can have one: one of them
        works.
        """
        return Sweeper(self._place, silent)

    def follow(
        self,
        stream: str | Stream,
        substreams: Iterable[int] | None = None,
        after: After = None,
        committed: bool = True,
        name: str | None = None,
    ) -> Following:
        """Follow a stream: an iterator of its messages, which waits for the next one.

        Yields committed messages in commit order; within a commit by substream, and there in the
        order of their appends. ``substreams``: some of them (default: all). ``after``: a message
        or its position; a mapping with one for each substream (others from the beginning); a
        ``datetime``, by the log's time; ``"beginning"`` (None) or ``"end"``.
        ``name``: it has a durable hold, which ``done`` moves; nothing after it is trimmed. If the
        name has one already, it goes on from there. In substreams for which ``after`` is a
        position it begins there instead, and the hold moves once ``done`` is beyond it.
        ``committed=False`` also yields pending and rolled-back messages, once, in the order of
        the log; ``Message.state`` says which.

        Raises ``NoSuchStream``, ``InvalidRequest``, and ``LogForked`` for a position that is not in
        this log. Raises ``TrimmedLog`` if the position was trimmed or the hold was dropped.
        """
        found = self._placing.stream(stream)
        return Following(self._place, found, substreams, after, committed=committed, name=name)

    def read(
        self, stream: str | Stream, substream: int, after: After = None, limit: int = AT_ONCE
    ) -> list[Message]:
        """Read committed messages of a substream once; an empty list: none follow ``after``.

        About ``limit`` of them: a read never stops inside a commit. ``after`` and errors: as
        ``follow``.
        """
        return read_once(self._place, self._placing.stream(stream), substream, after, limit)

    def holds(self, name: str | None = None) -> list[Hold]:
        """Return the holds of all followers, or of one name: what each keeps from being trimmed."""
        if name is not None:
            check_hold_name(name)
        return self._run(all_holds(name))

    def drop_hold(self, name: str) -> list[Hold]:
        """Drop a name's holds, so that they keep nothing, and return them: an operator's decision.

        Its follower gets ``TrimmedLog`` with what it lost, until ``forget_hold``.
        """
        found = self._run(drop(name))
        if found:
            _log.warning("hold_dropped", log=self._place.name, name=name, substreams=len(found))
        return found

    def forget_hold(self, name: str) -> list[Hold]:
        """Remove a name's holds, the dropped ones too, and return them: the name begins anew."""
        found = self._run(forget(name))
        if found:
            _log.warning("hold_forgotten", log=self._place.name, name=name, substreams=len(found))
        return found

    def trim(self, retention: timedelta | None = None) -> TrimOutcome:
        """Trim once what is older than the streams' retention, and than ``retention``.

        It never trims messages after a hold, pending ones, or a part of a transaction. Raises
        ``LogFull`` if the store had no room to declare the trim. If it had no room to remove the
        declared rows, ``remaining`` of the outcome says how many are still there. The next trim
        removes them.
        """
        return trim_once(self._place, retention)

    def trim_every(
        self,
        every: timedelta,
        retention: timedelta | None = None,
        told: Callable[[TrimOutcome | LogError], None] | None = None,
    ) -> Trimming:
        """Trim on a schedule, in a thread of this program, until the returned object is closed.

        Of several, in any processes, one works; another takes over when that one ends. ``told`` is
        called with the outcome of each round, or with its error.
        """
        return Trimming(self._place, every, retention, told)

    def close(self) -> None:
        """Close files and connections; idempotent. Calls that wait raise ``LogUnavailable``."""
        observers = self._place.observers
        if observers is not None and not self._place.closing.is_set():
            observers.detached(self._report)
        self._place.closing.set()
        self._place.engine.close()

    def __enter__(self) -> Log:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _run(self, rule: Rule[_T]) -> _T:
        """Carry a rule out, in this thread."""
        return self._place.run(rule)

    def _report(self) -> LogReport:
        return self._run(report(time.time_ns() // 1000))

    @property
    def _engine(self) -> Engine:
        return self._place.engine


def ticket_of(unknown: AppendUnknown) -> str:
    """Return what names a message of unknown outcome; raises ``InvalidRequest`` for another."""
    if not isinstance(unknown, AppendUnknown) or not isinstance(unknown.ticket, str):
        raise InvalidRequest(f"{shown(unknown)}: settle takes the AppendUnknown that was raised")
    return unknown.ticket
