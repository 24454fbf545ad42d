"""The carrying out of a shard's steps: at the log, at the store, and by the handlers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lease_server._forks import this_process
from sharedlog._consumer.calling import MessageCalls
from sharedlog._consumer.effects import Effects
from sharedlog._consumer.handlers import Handlers
from sharedlog._consumer.kept_calls import KeptCalls
from sharedlog._consumer.observing import Watchers
from sharedlog._consumer.services import Services
from sharedlog._consumer.state import ShardState
from sharedlog._consumer.store import Store
from sharedlog._core.commit import Refused
from sharedlog._core.consumer.asked import (
    AppendWithin,
    Asked,
    BatchEnds,
    Bury,
    CommitStore,
    Died,
    Failed,
    Fire,
    Note,
    Passed,
    Ran,
    Resend,
    Rewind,
    Run,
    StoreStep,
    TakeStore,
)
from sharedlog._core.consumer.calls import Answered, CallStep, Intend, Open, Send, ShardCalls
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.observer import HandlingReport
from sharedlog._core.consumer.outputs import Outputs
from sharedlog._core.consumer.state import Changes
from sharedlog._core.draft import Bounds, tags_for
from sharedlog._core.envelope import About
from sharedlog._core.errors import (
    AlreadyCommitted,
    CorruptLog,
    LogError,
    NewerFormat,
    SealedMessage,
    StoreUnavailable,
)
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog._core.publishing import APPEND_BYTES, APPEND_ENTRIES, Placed
from sharedlog._core.reading import Committed, State
from sharedlog._core.steps import Rule, Step
from sharedlog._core.streams import MAX_TAGS, stream_of, substream_number
from sharedlog._engines.driving import do
from sharedlog._engines.engine import Limits
from sharedlog._log.place import Place, forked
from sharedlog._log.placing import Placing

_T = TypeVar("_T")
# A batch ends early once it publishes so much of what an append takes: the next message may
# publish more than is left.
_FULL = 0.25
# Of a timer's function, which has no message.
_NOWHERE = Position(0, 0, 0, "")
# What a handler raises that is not its failure.
_PASSED = (KeyboardInterrupt, GeneratorExit, Died, BatchEnds)


def append_bounds(limits: Limits) -> Bounds:
    """Return what an append of ours has at most."""
    return Bounds(
        min(APPEND_ENTRIES, limits.entries),
        min(APPEND_BYTES, limits.append_bytes),
        tags_for(limits.operations, MAX_TAGS - 1),
    )


class Carrier:
    """Carries out what shards ask for. One thread."""

    def __init__(
        self,
        name: str,
        place: Place,
        placing: Placing,
        store: Store,
        handlers: Handlers,
        services: Services,
        *,
        batch_s: float,
        dead_letters: str | None,
        within: Callable[[Rule[Any]], object] | None = None,
        watchers: Watchers | None = None,
    ) -> None:
        """``services``: those that handlers call. ``batch_s``: a transaction takes no further
        message after that time. ``within``: carries an append out in the store's transaction,
        where the log is in that file: nothing can be appended beside it.
        """
        self._name = name
        self.watchers = watchers or Watchers(())
        # What the last transaction that ran was about, where somebody watches.
        self.ran: list[HandlingReport] = []
        self._place = place
        self._placing = placing
        self._store = store
        self._handlers = handlers
        self._calls = KeptCalls(name, place.incarnation, store)
        self._services = services
        # Streams whose messages begin a transaction each, as their handlers need.
        self._beginners: set[str] = set()
        self._batch_s = batch_s
        self._dead_letters = dead_letters
        self._within = within
        self._travels = within is None
        # Handlers may fork, and return in the child: the transaction and the lease are not its own.
        self._process = this_process()
        # Of an append; one tag and its stream's are the state's, where the log has that.
        self.bounds = append_bounds(place.engine.limits)
        self._bounds = self.bounds._replace(tags=self.bounds.tags - 2)
        # Carries a step out; a test kit has it do otherwise.
        self.act: Callable[[Step | StoreStep | CallStep], Any] = self.do

    def carry(self, rule: Asked[_T]) -> _T:
        """Drive a rule to its end; nothing is left open in the store. Raises what ends it."""
        answer: Any = None
        thrown: Refused | Failed | AlreadyCommitted | None = None
        try:
            while True:
                try:
                    step = rule.send(answer) if thrown is None else rule.throw(thrown)
                except StopIteration as stop:
                    found: _T = stop.value
                    return found
                answer = thrown = None
                try:
                    answer = self.act(step)
                except (Refused, Failed, AlreadyCommitted) as error:
                    thrown = error
        finally:
            # In a child the transaction is the parent's.
            if not self.inherited:
                self._store.rollback()

    @property
    def timers(self) -> list[float]:
        """How often each timer is due, in seconds."""
        return self._handlers.timers

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that this belongs to."""
        return this_process() is not self._process

    def do(self, step: Step | StoreStep | CallStep) -> Any:
        """Carry a step out; raises ``LogStopped`` in a forked child."""
        if self.inherited:
            raise forked()
        match step:
            case TakeStore() | Note() | Rewind():
                return self._noted(step)
            case Run(messages, changes):
                return self._run(messages, changes)
            case Fire(tag, timer, changes):
                return self._fire(tag, timer, changes)
            case Bury(message, attempts, why):
                return self._bury(message, attempts, why)
            case AppendWithin(append):
                return self._append(append)
            case CommitStore(tag, checkpoint) | Passed(tag, checkpoint):
                return self._commit(tag, checkpoint)
            case Resend(tag, checkpoint):
                return self._calls.resend(tag, checkpoint, self.act)
            case Open():
                return self._services.open(step)
            case Send():
                return self._services.send(step)
            case Intend() | Answered():
                return self._calls.keep(step)
        observers = self._place.observers
        engine = self._place.engine
        return do(engine, step) if observers is None else observers.act(engine, step)

    def _noted(self, step: TakeStore | Note | Rewind) -> Any:
        """Write what is not the handlers'; a commit that did not happen is tried again."""
        try:
            if isinstance(step, Note):
                return self._store.note(step.tag, step.number, step.attempts)
            if isinstance(step, Rewind):
                return self._store.rewind(*step)
            return self._store.take(step.tag, step.number, died=step.died, anew=step.anew)
        except Failed as failed:
            raise StoreUnavailable(f"the store: {failed.why}") from failed

    def _run(self, messages: Sequence[Committed], changes: Changes | None) -> Ran:
        """Run handlers in one transaction until it is full; what they raise is ``Failed``."""
        calls = self._calls.of(messages[0].tag)
        self.ran = []
        connection = self._store.begin()
        outputs = Outputs(self._bounds, travels=self._travels)
        end = time.monotonic() + self._batch_s
        done = 0
        try:
            for each in messages:
                if done and stream_of(each.tag) in self._beginners:
                    break
                before = len(outputs.messages)
                try:
                    self._call(each, connection, changes, outputs, calls, first=not done)
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
                done += 1
                full = (
                    outputs.size + (changes.size if changes else 0)
                    > _FULL * self._bounds.append_bytes
                    or len(outputs.messages) > _FULL * self._bounds.entries
                )
                if full or time.monotonic() >= end:
                    break
        except BaseException:
            if not self.inherited:
                self._store.rollback()
            raise
        return Ran(done, outputs.messages, changes)

    def _append(self, append: Rule[Any]) -> None:
        if self._within is None:
            raise AssertionError("the log is elsewhere")
        self._within(append)

    def _commit(self, tag: str, checkpoint: Checkpoint) -> None:
        self._store.commit(tag, checkpoint)
        self._calls.passed(tag, checkpoint)

    def _call(
        self,
        each: Committed,
        connection: Any,
        changes: Changes | None,
        outputs: Outputs,
        shard: ShardCalls,
        *,
        first: bool,
    ) -> None:
        """``first``: no other message of the transaction was before it."""
        calls = MessageCalls(
            shard, each.position, self._store, self.act, first=first, told=self._called
        )
        message = self._readable(each)
        state = None if changes is None else ShardState(changes)
        effects = Effects(connection, message, self._placing, outputs, calls, state)
        if self.watchers:
            self._guard(lambda effects: self._watched(each, effects), effects, calls)
        else:
            self._guard(self._handlers.run, effects, calls)
        if calls.made and self._store.written() is not None:
            self._beginners.add(stream_of(each.tag))

    def _fire(self, tag: str, timer: int, changes: Changes | None) -> Ran:
        """Run a timer's function in a transaction; what it raises is ``Failed``."""
        self.ran = []
        shard = self._calls.of(tag)
        connection = self._store.begin()
        outputs = Outputs(self._bounds, travels=self._travels)
        calls = MessageCalls(shard, _NOWHERE, self._store, self.act, first=True, told=self._called)
        state = None if changes is None else ShardState(changes)
        effects = Effects(connection, None, self._placing, outputs, calls, state)
        try:
            self._guard(lambda effects: self._handlers.fire(timer, effects), effects, calls)
        except BaseException:
            if not self.inherited:
                self._store.rollback()
            raise
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
            why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            raise Failed(why, counts=not self._store.fault(error), ends=ends) from error
        if self.inherited:
            raise forked()
        calls.check()
        self._store.intact()

    def _watched(self, each: Committed, effects: Effects) -> None:
        """Run a handler under the eyes of those who watch."""
        report = HandlingReport(self._name, each.tag, each.position, each.at_us, each.envelope)
        with self.watchers.handling(report) as effects.trace:
            self._handlers.run(effects)
        self.ran.append(report)

    def _called(self, target: str, method: str, seconds: float, error: str) -> None:
        self.watchers.each("called", self._name, target, method, seconds, error)

    def _bury(self, each: Committed, attempts: int, why: str) -> Ran:
        """Publish a message as it was, and why, to the dead letters."""
        said = {
            "dead-letter-position": f"{stream_of(each.tag)} {each.position}",
            "dead-letter-attempts": str(attempts),
            "dead-letter-error": why,
        }
        outputs = Outputs(self._bounds, travels=self._travels)
        try:
            message = self._message(each)
            about = About(
                {**message.headers, **said},
                message.content_type,
                message.schema_name,
                causation_id=str(each.position),
            )
            outputs.add(self._dead(message.value, message.key, about))
        except LogError:
            # It cannot be read, or is too large with what is said of it: it is where it was.
            outputs = Outputs(self._bounds, travels=self._travels)
            outputs.add(self._dead(b"", None, About(said, causation_id=str(each.position))))
        self._store.begin()
        return Ran(1, outputs.messages)

    def _dead(self, value: bytes, key: bytes | None, about: About) -> Placed:
        if self._dead_letters is None:
            raise AssertionError("no dead letters")
        return self._placing.placed(self._dead_letters, value, key, None, about)

    def _readable(self, each: Committed) -> Message:
        """Return a message; ``Failed``: nobody can read it.

        What only this process cannot read is not given up: raises ``NewerFormat``, and
        ``SealedMessage`` where it was started without the key.
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
