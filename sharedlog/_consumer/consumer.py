"""``sharedlog.Consumer``: functions that consume streams, change a database and publish."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import grpc

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.places import places
from sharedlog._consumer.carrying import Carrier
from sharedlog._consumer.configuring import Configure
from sharedlog._consumer.evidence import has_ended, new_who
from sharedlog._consumer.handlers import Handler, Handlers, Kind, TimerFunction
from sharedlog._consumer.hanging import look_at
from sharedlog._consumer.in_log import LOG
from sharedlog._consumer.kept_calls import KeptCalls
from sharedlog._consumer.membership import Membership
from sharedlog._consumer.observing import Watchers
from sharedlog._consumer.opening import store_of
from sharedlog._consumer.services import CalledService, ServiceChannels
from sharedlog._consumer.settling import Carry, Settling
from sharedlog._consumer.sharing import ConsumerSettings
from sharedlog._consumer.store import StoreLane
from sharedlog._consumer.working import ShardWork
from sharedlog._core.arguments import check_truth, check_whole
from sharedlog._core.catalog import hold_retention_us
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.holding import Begins, Since
from sharedlog._core.consumer.keeping import InStore
from sharedlog._core.consumer.names import producer_name
from sharedlog._core.consumer.observer import ConsumerObserver
from sharedlog._core.consumer.shard import TransactionBounds
from sharedlog._core.errors import InvalidRequest, LogStopped, LogUnavailable, StoreAway
from sharedlog._core.fences import MAX_NUMBER
from sharedlog._core.holds import BEGINNING, END
from sharedlog._core.named import check_any_name
from sharedlog._core.position import Position
from sharedlog._core.streams import check_name, stream_of, substream_number, tag_of
from sharedlog._engines.elsewhere import refuse_served
from sharedlog._engines.engine import Stirring
from sharedlog._log.log import Log
from sharedlog._log.place import forked


def begins_of(start: str | datetime | Position, tags: Sequence[str]) -> Mapping[str, Begins]:
    """Return where it begins in each substream; raises ``InvalidRequest``."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequest(f"start={start!r} has no time zone")
        return dict.fromkeys(tags, Since(int(start.timestamp() * 1_000_000)))
    if not isinstance(start, Position):
        if start not in (BEGINNING, END):
            raise InvalidRequest(
                f"start={start!r:.100} must be {BEGINNING!r}, {END!r}, a datetime or a position"
            )
        return dict.fromkeys(tags, start)
    streams = sorted({stream_of(each) for each in tags})
    if len(streams) > 1:
        raise InvalidRequest(
            f"start={str(start)!r}: a position says no stream, and there are "
            f"{', '.join(streams)}: give a time"
        )
    if not any(substream_number(each) == start.substream for each in tags):
        raise InvalidRequest(f"start={str(start)!r} is of no substream of {streams[0]}")
    return {
        each: start if substream_number(each) == start.substream else start.lsn + 1 for each in tags
    }


_H = TypeVar("_H", bound=Handler)
_T = TypeVar("_T", bound=TimerFunction)
_R = TypeVar("_R")
_E = TypeVar("_E", StoreLane, Handlers, ServiceChannels)
_O = TypeVar("_O")
LEASE = timedelta(seconds=1.2)
# Looks at who has what, within a lease.
_LOOKS = 3
_MESSAGE_BYTES = 1 << 20
# Threads, and sessions.
_MOST_LANES = 1000
_BATCH_S = 0.05
# How soon a consumer that waits learns that it was closed.
_SLICE_S = 0.4


class Consumer:
    """A consumer: it calls functions with the messages of streams, in the order of each substream.

    A function's effects in its database, and what it publishes, are there once for each message,
    whatever process crashes. Call ``run`` in any number of processes: they share the substreams.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        streams: Sequence[str],
        store: str,
        *,
        start: str | datetime | Position = BEGINNING,
        attempts: int = 5,
        dead_letters: str | None = None,
        batch: int = 100,
        lease: timedelta = LEASE,
        observer: ConsumerObserver | Sequence[ConsumerObserver] | None = None,
        standby: bool = True,
        configure: Configure | None = None,
        concurrency: int = 1,
    ) -> None:
        """``store``: the database of the effects, ``sqlite:///FILE``,
        ``postgresql://HOST/DATABASE`` or ``redis://HOST``; or ``"log"``: the log has the state.

        ``start``: where a consumer with a new name begins: ``"beginning"``, ``"end"``, a time (it
        begins after what was appended until then), or a position of the one stream that it
        follows (in other substreams it begins after that commit). ``attempts``: after so many a
        message is published to the stream ``dead_letters``. Without that its substream stops, until
        ``sharedlog consumers --resume``. ``batch``: messages of one transaction at most. ``lease``:
        after so long without a sign of life, a process loses its substreams. ``standby``: also keep
        the state of other processes' substreams in memory, so that a take-over need not read it.
        ``configure``: called with each new connection of sqlite3 or psycopg to the store, before
        handlers use it, in the thread that uses it: for functions, collations, adapters and
        settings. It must leave no transaction open.

        ``concurrency``: so many functions of different substreams run at once in this process,
        each in a transaction of its own; those of one substream run in order. With more than one,
        asynchronous functions share one event loop, in a thread of its own, and others are called
        in so many threads. Over SQLite one runs at a time in any case. PostgreSQL has one session
        for each and one more, in which a statement waits for a lock for a second at most.

        Raises ``InvalidRequest``, also for a log over gRPC (a consumer opens the log itself), and
        ``NoSuchStream``.
        """
        check_name(name, "consumer")
        if isinstance(streams, str) or not streams:
            raise InvalidRequest(f"streams={streams!r:.100} must be a list, such as ['orders']")
        if not isinstance(lease, timedelta):
            raise InvalidRequest(f"lease={lease!r:.100} must be a timedelta")
        if not isinstance(store, str):
            raise InvalidRequest(
                f"store={store!r:.100} must be a URL, such as 'sqlite:///billing.db'"
            )
        check_whole(attempts, "attempts", 1, MAX_NUMBER)
        check_whole(batch, "batch", 1, MAX_NUMBER)
        check_whole(concurrency, "concurrency", 1, _MOST_LANES)
        if lease <= timedelta(0):
            raise InvalidRequest("the lease must be positive")
        place = log._place
        refuse_served(place.engine)
        found = [log._placing.stream(each) for each in sorted(set(streams))]
        if dead_letters is not None:
            log._placing.stream(dead_letters)
            if dead_letters in {each.name for each in found}:
                raise InvalidRequest(
                    f"dead_letters={dead_letters!r} is followed by the consumer itself: it would "
                    "bury what it has buried"
                )
        self.name = name
        self._log = log
        self._handlers = Handlers([each.name for each in found])
        self._store = store
        self._open_store = store_of(store, name, place, configure)
        self._streams = ",".join(f"{each.name}/{each.substreams}" for each in found).encode()
        self._lease_s = lease.total_seconds()
        self._dead_letters = dead_letters
        self._concurrency = concurrency
        tags = [tag_of(each.name, at) for each in found for at in range(each.substreams)]
        check_any_name(producer_name(name, max(tags, key=len)))
        self._settings = ConsumerSettings(
            name,
            tags,
            max(map(hold_retention_us, found)),
            TransactionBounds(batch, _MESSAGE_BYTES, attempts, dead_letters is not None),
            begins_of(start, tags),
            self._lease_s / _LOOKS,
            store == LOG,
            InStore,
            standby,
        )
        self._watchers = Watchers.of(observer)
        self._services: dict[str, CalledService] = {}
        self._clock = time.monotonic
        self._has_ended = has_ended
        self._closing = threading.Event()
        self._place = places(1, 0.0)
        # Of a run; of one that an exception of a signal ended before it parted, until the next.
        self._membership: Membership | None = None
        refuse_in_children(self, forked)

    def _begins_at(self, start: str | datetime | Position) -> None:
        """Set where it begins if its name is new; call it before ``run``."""
        begins = begins_of(start, self._settings.tags)
        self._settings = self._settings._replace(begins=begins)

    def on(self, stream: str, kind: Kind = None, *, batches: bool = False) -> Callable[[_H], _H]:
        """Register a function that is called with each message of a stream, and its ``Effects``.

        ``kind``: the type of its first argument: a protobuf class, ``bytes``, ``str``, or a
        function of the value's bytes, such as ``json.loads``; ``None``: the ``Message``. The
        function can be asynchronous. If it raises, its effects are rolled back, and it is called
        again.

        ``batches``: it is called with a list: the messages of one substream that wait, in their
        order, as many as fit one transaction. If it raises, all of that is rolled back. Then it is
        called with each message alone, so that one that fails does not block the others. Raises
        ``InvalidRequest``.
        """
        check_truth(batches, "batches")

        def add(call: _H) -> _H:
            self._handlers.add(stream, kind, call, batches=batches)
            return call

        return add

    def every(self, interval: timedelta) -> Callable[[_T], _T]:
        """Register a timer: a function that is called with ``Effects`` at an interval.

        For each substream, by the clock of the process that has it; the first call comes one
        interval after the take-over. It runs between messages, in a transaction of its own: its
        effects are there once for each time. ``effects.message`` and ``effects.channel`` raise. If
        it raises, its effects are rolled back, and it is called again when it is next due. Raises
        ``InvalidRequest``.
        """
        if not isinstance(interval, timedelta) or interval <= timedelta(0):
            raise InvalidRequest(f"interval={interval!r:.100} must be a positive timedelta")

        def add(call: _T) -> _T:
            self._handlers.add_timer(interval.total_seconds(), call)
            return call

        return add

    def service(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        options: Sequence[tuple[str, Any]] = (),
        interceptors: Sequence[Any] = (),
        plaintext_secrets: bool = False,
    ) -> None:
        """Set how to call a service that handlers call by ``Effects.channel(target)``.

        The arguments are those of ``rifl.connect``. By default there are no credentials, and the
        secret is that of RIFL_SESSION_SECRET, or of the file that RIFL_SESSION_SECRET_FILE names.
        All processes of the consumer need the same secret, or several with it among them.
        """
        self._services[target] = CalledService(
            credentials, secret, options, interceptors, plaintext_secrets
        )

    def run(self) -> None:
        """Consume until ``close`` is called, by another thread, a signal handler, or a handler.

        Raises ``StoreWentBack`` if the store was restored or wiped, ``TrimmedLog`` if its hold was
        dropped, and ``InvalidRequest`` if the consumer runs with other streams. Raises
        ``LogForked``, ``CorruptLog``, ``LogStopped``, and ``StoreAway`` if the store cannot be
        opened. After that it retries while the log or the store does not answer.
        """
        self._alone(self._run)

    def _run(self) -> None:
        with self._member() as work:
            tail: int | None = None
            while not self._stops():
                tail = None if work.round(tail) else self._wait(work)

    def once(self) -> int:
        """Consume the messages that are there, and return how many this did; else as ``run``.

        If other processes run, each does its part. Waits until the lease of a crashed process is
        over.
        """
        return self._alone(self._once)

    def _once(self) -> int:
        with self._member() as work:
            tail = self._log._engine.tail()
            work.sharing.await_dead(self._closing, self._lease_s)
            while not self._stops():
                if work.round():
                    continue
                if work.caught_up(tail):
                    break
                self._wait(work)
            return work.done

    def close(self) -> None:
        """Make ``run`` return after the function that runs; idempotent. Any thread."""
        self._closing.set()

    def _stops(self) -> bool:
        if self._log._place.closing.is_set():
            raise LogStopped("the log was closed")
        return self._closing.is_set()

    def _wait(self, work: ShardWork) -> int | None:
        """Wait for messages, or until other work is due; the log's tail, if that is known."""
        timeout_s, through = min(work.idle_s(), _SLICE_S), work.through
        engine = self._log._place.engine
        if through < 0:
            self._closing.wait(timeout_s)
            return None
        wait = engine.hear if isinstance(engine, Stirring) else engine.wait
        try:
            return wait(through, timeout_s)
        except LogStopped:
            raise
        except LogUnavailable:
            self._closing.wait(_SLICE_S)
            return None

    def _alone(self, act: Callable[[], _R]) -> _R:
        try:
            with self._place:
                return act()
        except queue.Empty:
            raise InvalidRequest("this consumer runs already") from None

    @contextmanager
    def _member(self, clock: Callable[[], float] | None = None) -> Iterator[ShardWork]:
        """Be one of the consumer's processes.

        ``clock``: of a test, which drives it round by round; no thread says that it is there.
        """
        self._handlers.check()
        place = self._log._place
        count = 1 if clock is not None else min(self._concurrency, len(self._settings.tags))
        with (
            _ended(opened(self._open_store)) as store,
            _lanes_of(store, count) as lanes,
            _ended(self._handlers),
            _ended(ServiceChannels(self._services)) as services,
        ):
            membership = self._new_membership()
            calls = KeptCalls(self.name, place.incarnation)
            carrier, *carriers = [
                Carrier(
                    self.name,
                    place,
                    self._log._placing,
                    each,
                    self._handlers,
                    calls,
                    services,
                    batch_s=_BATCH_S if clock is None else math.inf,
                    dead_letters=self._dead_letters,
                    watchers=self._watchers,
                    clock=clock or self._clock,
                )
                for each in (store, *lanes)
            ]
            if carriers:
                self._handlers.begin_apart()
            settings, as_one = self._settings, carrier.together
            if as_one is not None:
                settings = settings._replace(keeper=as_one.keeper)
            # Where the log is in the store's file nothing is owed, but by a release before.
            alone = as_one is not None and as_one.alone
            aside = place.run if clock is None and not alone else None
            settling = self._new_settling(aside)
            hanging = [each.hanging for each in carriers or (carrier,)]
            membership.beside = lambda: look_at(hanging)
            membership.longest_run_s = lambda: max(each.longest_s() for each in hanging)
            membership.join()
            work = ShardWork(
                place,
                settings,
                membership,
                carrier,
                settling,
                clock=clock or self._clock,
                lanes=carriers,
                ended=self._has_ended,
            )
            if clock is None:
                membership.start()
            try:
                yield work
                work.end_turns()
            except KeyboardInterrupt:
                self._handlers.interrupt()
                raise
            finally:
                if not carrier.inherited:
                    try:
                        work.end()
                    finally:
                        settling.close()
                        # What the log is not told, others find out in time.
                        with suppress(LogUnavailable):
                            membership.part()
                            self._membership = None

    def _new_membership(self) -> Membership:
        if (former := self._membership) is not None:
            with suppress(LogUnavailable):
                former.part()
        place, streams, over = self._log._place, self._streams, self._place.all_free
        made = Membership(place, self.name, new_who(), streams, self._lease_s, over, self._clock)
        self._membership = made
        return made

    def _new_settling(self, aside: Carry | None) -> Settling:
        return Settling(aside)


@contextmanager
def _ended(made: _E) -> Iterator[_E]:
    """Close what was made, in the process that has made it: a child that forks has but a copy."""
    process = os.getpid()
    try:
        yield made
    finally:
        if os.getpid() == process:
            made.close()


def opened(open_store: Callable[[], _O]) -> _O:
    """Open a store, or a lane of one; raises ``StoreAway``."""
    try:
        return open_store()
    except Failed as failed:
        raise StoreAway(f"the store: {failed.why}") from failed


@contextmanager
def _lanes_of(store: StoreLane, count: int) -> Iterator[list[StoreLane]]:
    """Open so many lanes of a store beside the one that there is; none where one suffices."""
    found: list[StoreLane] = []
    with ExitStack() as stack:
        while 1 < count > len(found) and (lane := opened(store.lane)) is not None:
            found.append(stack.enter_context(_ended(lane)))
        yield found
