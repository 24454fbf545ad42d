"""The running of handlers in a transaction of the store: of messages, batches, and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from _rifl_ground.counting import Counts, counts, is_noted
from _rifl_ground.forks import this_process
from sharedlog._consumer.calling import Act, MessageCalls
from sharedlog._consumer.effects import Effects
from sharedlog._consumer.handlers import Handlers
from sharedlog._consumer.hanging import Hanging
from sharedlog._consumer.kept_calls import KeptCalls
from sharedlog._consumer.observing import Watchers
from sharedlog._consumer.state import ShardState
from sharedlog._consumer.store import StoreLane
from sharedlog._core.consumer.asked import BatchEnds, Died, Failed, Ran, Unit, story_of
from sharedlog._core.consumer.calls import ShardCalls
from sharedlog._core.consumer.observer import HandlingReport
from sharedlog._core.consumer.outputs import Outputs
from sharedlog._core.consumer.state import Changes
from sharedlog._core.dead_letters import said
from sharedlog._core.draft import AppendBounds
from sharedlog._core.envelope import About
from sharedlog._core.errors import (
    CorruptLog,
    LogError,
    LogUnavailable,
    NewerFormat,
    SealedMessage,
    StoreAway,
)
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._core.reading import Committed, State
from sharedlog._core.streams import stream_of, substream_number
from sharedlog._log.place import Place, forked
from sharedlog._log.placing import Placing

# A batch ends early once it publishes so much of what an append takes: the next message may
# publish more than is left.
_FULL = 0.25
# Of a timer's function, which has no message.
_NOWHERE = Position(0, 0, 0, "", 0)
# What a handler raises that is not its failure.
_PASSED = (KeyboardInterrupt, Died, BatchEnds)


class Runner:
    """Runs the handlers of one process; their effects are there if the caller commits them.

    One thread. ``ran``: the reports of the last transaction, if there is an observer.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        placing: Placing,
        store: StoreLane,
        handlers: Handlers,
        calls: KeptCalls,
        act: Act,
        *,
        bounds: AppendBounds,
        batch_s: float,
        dead_letters: str | None,
        travels: bool,
        watchers: Watchers,
        clock: Callable[[], float],
    ) -> None:
        """``bounds``: of an append; ``travels``: what is published may be more than one.

        ``batch_s``: a transaction takes no further message after that time. ``act``: carries out
        what handlers' calls ask for.
        """
        self.ran: list[HandlingReport] = []
        self.watchers = watchers
        self._name = name
        self._place = place
        self._placing = placing
        self._store = store
        self._handlers = handlers
        self._calls = calls
        self._act = act
        # Streams whose messages begin a transaction each, as their handlers need.
        self._beginners: set[str] = set()
        self._bounds = bounds
        self._batch_s = batch_s
        self._dead_letters = dead_letters
        self._travels = travels
        self.hanging = Hanging(place.name, name, clock)
        self._clock = clock
        # Handlers may fork, and return in the child: the transaction and the lease are not its own.
        self._process = this_process()

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that this belongs to."""
        return this_process() is not self._process

    def run(self, messages: Sequence[Committed], changes: Changes | None) -> Ran:
        """Run handlers in one transaction until it is full; what they raise is ``Failed``."""
        calls = self._calls.of(messages[0].tag, self._store)
        self.ran = []
        self._store.begin()
        outputs = Outputs(self._bounds, travels=self._travels)
        batches = self._handlers.in_batches(stream_of(messages[0].tag))
        units: list[Unit] = []
        try:
            if batches:
                done = self._run_batch(messages, changes, outputs, calls)
            else:
                units = self._run_each(messages, changes, outputs, calls)
                done = len(units)
        except BaseException:
            if not self.inherited:
                self._store.rollback()
            raise
        return Ran(done, outputs.messages, changes, units)

    def _run_each(
        self,
        messages: Sequence[Committed],
        changes: Changes | None,
        outputs: Outputs,
        calls: ShardCalls,
    ) -> list[Unit]:
        """Run a handler message by message; those that are done."""
        end = self._clock() + self._batch_s
        done: list[Unit] = []
        for each in messages:
            if done and stream_of(each.tag) in self._beginners:
                break
            before = len(outputs.messages)
            try:
                self._call(each, changes, outputs, calls, first=not done)
            except BatchEnds:
                # T6, say: nothing of it is there; it begins the next transaction.
                self._beginners.add(stream_of(each.tag))
                outputs.back_to(before)
                break
            except (NewerFormat, SealedMessage):
                # What is before it is done first.
                if not done:
                    raise
                break
            done.append(Unit(each.position, len(outputs.messages)))
            full = (
                outputs.size + (changes.size if changes else 0) > _FULL * self._bounds.append_bytes
                or len(outputs.messages) > _FULL * self._bounds.entries
            )
            if full or self._clock() >= end:
                break
        return done

    def _run_batch(
        self,
        messages: Sequence[Committed],
        changes: Changes | None,
        outputs: Outputs,
        shard: ShardCalls,
    ) -> int:
        """Run a handler once, with all of them that this process can read; how many are done."""
        readable: list[Message] = []
        for each in messages:
            try:
                readable.append(self._readable(each))
            except (NewerFormat, SealedMessage):
                # What is before it is done first.
                if not readable:
                    raise
                break
        taken = messages[: len(readable)]
        calls = self._calls_of(shard, taken[-1].position, first=True)
        state = None if changes is None else ShardState(changes)
        effects = Effects(readable, self._placing, outputs, calls, state, batch=True)
        self._handle(taken, effects, calls)
        return len(readable)

    def _call(
        self,
        each: Committed,
        changes: Changes | None,
        outputs: Outputs,
        shard: ShardCalls,
        *,
        first: bool,
    ) -> None:
        """``first``: no other message of the transaction was before it."""
        calls = self._calls_of(shard, each.position, first=first)
        message = self._readable(each)
        state = None if changes is None else ShardState(changes)
        effects = Effects([message], self._placing, outputs, calls, state)
        self._handle([each], effects, calls)
        if calls.made and self._store.written() is not None:
            self._beginners.add(stream_of(each.tag))

    def fire(self, tag: str, timer: int, changes: Changes | None) -> Ran:
        """Run a timer's function in a transaction; what it raises is ``Failed``."""
        self.ran = []
        shard = self._calls.of(tag, self._store)
        self._store.begin()
        outputs = Outputs(self._bounds, travels=self._travels)
        calls = self._calls_of(shard, _NOWHERE, first=True)
        state = None if changes is None else ShardState(changes)
        effects = Effects((), self._placing, outputs, calls, state)
        self.hanging.begin(self._handlers.timer_name(timer), tag, None)
        try:
            self._guard(lambda effects: self._handlers.fire(timer, effects), effects, calls)
        except BaseException:
            if not self.inherited:
                self._store.rollback()
            raise
        finally:
            self.hanging.end(effects.left)
        return Ran(0, outputs.messages, changes)

    def _guard(self, run: Callable[[Effects], None], effects: Effects, calls: MessageCalls) -> None:
        """Run what is the user's; what it raises is ``Failed``."""
        try:
            run(effects)
        except _PASSED:
            raise
        except BaseException as error:
            if calls.ends is not None and not self.inherited:
                raise calls.ends from error
            ends = None if isinstance(error, Exception) else error
            if self.inherited:
                if ends is not None:
                    raise
                raise forked() from error
            raise Failed(story_of(error), counts=counts(error, self._judge), ends=ends) from error
        if self.inherited:
            raise forked()
        calls.check()
        effects.check()
        self._store.intact()

    def _judge(self, error: BaseException) -> Counts:
        """Say whether an error counts, without what it wraps."""
        if isinstance(error, LogUnavailable | StoreAway):
            return not is_noted(error)
        return self._store.judge(error)

    def _calls_of(self, shard: ShardCalls, position: Position, *, first: bool) -> MessageCalls:
        return MessageCalls(shard, position, self._store, self._act, first=first, told=self._called)

    def _handle(self, messages: Sequence[Committed], effects: Effects, calls: MessageCalls) -> None:
        first = messages[0]
        self.hanging.begin(self._handlers.name_of(stream_of(first.tag)), first.tag, first.position)
        try:
            if self.watchers:
                self._guard(lambda effects: self._watched(messages, effects), effects, calls)
            else:
                self._guard(self._handlers.run, effects, calls)
        finally:
            self.hanging.end(effects.left)

    def _watched(self, messages: Sequence[Committed], effects: Effects) -> None:
        """Run a handler under the eyes of those who watch; of a batch they see the last one."""
        reports = [
            HandlingReport(self._name, each.tag, each.position, each.at_us, each.envelope)
            for each in messages
        ]
        with self.watchers.handling(reports[-1]) as effects.trace:
            self._handlers.run(effects)
        self.ran += reports

    def _called(self, target: str, method: str, seconds: float, error: str) -> None:
        self.watchers.each("called", self._name, target, method, seconds, error)

    def bury(self, each: Committed, attempts: int, why: str) -> Ran:
        """Publish a message as it was, and why, to the dead letters."""
        outputs = Outputs(self._bounds, travels=self._travels)
        try:
            message = self._message(each)
            about = About(
                {**message.headers, **self._said(each, attempts, why, cut=False)},
                message.content_type,
                message.schema_name,
                causation_id=str(each.position),
                method=message.method,
            )
            outputs.add(self._dead(message.value, message.key, about))
        except LogError:
            # It cannot be read, or is too large with what is said of it: it is where it was.
            outputs = Outputs(self._bounds, travels=self._travels)
            about = About(
                self._said(each, attempts, why, cut=True), causation_id=str(each.position)
            )
            outputs.add(self._dead(b"", None, about))
        self._store.begin()
        return Ran(1, outputs.messages)

    def _said(self, each: Committed, attempts: int, why: str, *, cut: bool) -> dict[str, str]:
        return said(self._name, each.tag, each.position, attempts, why, cut=cut)

    def _dead(self, value: bytes, key: bytes | None, about: About) -> Placed:
        if self._dead_letters is None:
            raise AssertionError("no dead letters")
        return self._placing.placed(self._dead_letters, value, key, None, about)

    def _readable(self, each: Committed) -> Message:
        """Return a message; raises ``Failed`` if no process can read it.

        What only this process cannot read is not given up: raises ``NewerFormat``, and
        ``SealedMessage`` if it was started without the key.
        """
        try:
            message = self._message(each)
        except CorruptLog as error:
            raise Failed(f"CorruptLog: {error}", counts=True) from error
        if message.sealed and self._place.seals is None:
            raise SealedMessage(f"{each.position} is sealed: no unseal was given")
        return message

    def _message(self, each: Committed) -> Message:
        stream, at = stream_of(each.tag), substream_number(each.tag)
        seals = self._place.seals
        return Message(each.envelope, each.position, stream, at, each.at_us, State.COMMITTED, seals)
