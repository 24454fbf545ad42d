"""The carrying out of a shard's steps: at the log, at the store, and by the handlers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sharedlog._consumer.handlers import Handlers
from sharedlog._consumer.hanging import Hanging
from sharedlog._consumer.kept_calls import KeptCalls
from sharedlog._consumer.observing import Watchers
from sharedlog._consumer.running import Runner
from sharedlog._consumer.services import ServiceChannels
from sharedlog._consumer.store import StoreLane
from sharedlog._core.commit import Refused
from sharedlog._core.consumer.asked import (
    AppendWithin,
    Asked,
    Bury,
    CommitStore,
    Failed,
    Fire,
    NoteBegun,
    PartialTransaction,
    Passed,
    Resend,
    Rewind,
    Run,
    StoreStep,
    TakeStore,
    Unit,
)
from sharedlog._core.consumer.calls import CallStep, Intend, KeepAnswer, Open, SendCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.observer import HandlingReport
from sharedlog._core.draft import AppendBounds, tags_for
from sharedlog._core.errors import (
    AlreadyCommitted,
    StoreAway,
    TrimmedLog,
)
from sharedlog._core.incarnation import of_incarnation
from sharedlog._core.publishing import APPEND_BYTES, APPEND_ENTRIES
from sharedlog._core.steps import Rule, Step
from sharedlog._core.streams import MAX_TAGS
from sharedlog._engines.engine import Limits
from sharedlog._log.place import Place, forked
from sharedlog._log.placing import Placing

_T = TypeVar("_T")


def append_bounds(limits: Limits) -> AppendBounds:
    """Return the bounds of one append of a consumer."""
    return AppendBounds(
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
        store: StoreLane,
        handlers: Handlers,
        calls: KeptCalls,
        services: ServiceChannels,
        *,
        batch_s: float,
        dead_letters: str | None,
        watchers: Watchers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``store``: a lane of it. ``services``: those that handlers call. ``batch_s``: a
        transaction takes no further message after that time.
        """
        self.watchers = watchers or Watchers(())
        self._place = place
        self._store = store
        self._handlers = handlers
        self._calls = calls
        self._services = services
        self.together = together = store.joined(place.engine)
        # Of an append; one tag and its stream's are the state's, where the log has that.
        self.bounds = append_bounds(place.engine.limits)
        self._runner = Runner(
            name,
            place,
            placing,
            store,
            handlers,
            self._calls,
            lambda step: self.act(step),
            bounds=self.bounds._replace(tags=self.bounds.tags - 2),
            batch_s=batch_s,
            dead_letters=dead_letters,
            travels=together is None or not together.alone,
            watchers=self.watchers,
            clock=clock,
        )
        # Carries a step out; a test kit has it do otherwise.
        self.act: Callable[[Step | StoreStep | CallStep], Any] = self.do

    def carry(self, rule: Asked[_T]) -> _T:
        """Drive a rule to its end; nothing is left open in the store. Raises what ends it."""
        answer: Any = None
        thrown: Refused | Failed | AlreadyCommitted | TrimmedLog | None = None
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
                except (Refused, Failed, AlreadyCommitted, TrimmedLog) as error:
                    thrown = error
        finally:
            # In a child the transaction is the parent's.
            if not self.inherited:
                self._store.rollback()

    @property
    def hanging(self) -> Hanging:
        """Which function runs."""
        return self._runner.hanging

    @property
    def timers(self) -> list[float]:
        """How often each timer is due, in seconds."""
        return self._handlers.timers

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that this belongs to."""
        return self._runner.inherited

    @property
    def ran(self) -> list[HandlingReport]:
        """The reports of the last transaction that ran, if there is an observer."""
        return self._runner.ran

    def do(self, step: Step | StoreStep | CallStep) -> Any:
        """Carry a step out; raises ``LogStopped`` in a forked child."""
        if self.inherited:
            raise forked()
        match step:
            case TakeStore() | NoteBegun() | Rewind():
                return self._noted(step)
            case Run(messages, changes):
                return self._runner.run(messages, changes)
            case Fire(tag, timer, changes):
                return self._runner.fire(tag, timer, changes)
            case Bury(message, attempts, why):
                return self._runner.bury(message, attempts, why)
            case AppendWithin(tag, append):
                return self._append(tag, append)
            case CommitStore(tag, checkpoint, units):
                return self._commit(tag, checkpoint, units)
            case Passed(tag, checkpoint):
                return self._commit(tag, checkpoint)
            case Resend(tag, checkpoint):
                return self._calls.resend(tag, checkpoint, self._store, self.act)
            case Open():
                return self._services.open(step)
            case SendCall():
                return self._services.send(step)
            case Intend() | KeepAnswer():
                return self._calls.keep(step, self._store)
        return self._place.act(self._place.engine, step)

    def _noted(self, step: TakeStore | NoteBegun | Rewind) -> Any:
        """Write what is not the handlers'; a commit that did not happen is tried again."""
        try:
            if isinstance(step, NoteBegun):
                return self._store.note(step.tag, step.number, step.attempts)
            if isinstance(step, Rewind):
                return self._store.rewind(*step)
            return self._store.take(step.tag, step.number, gone=step.gone, anew=step.anew)
        except Failed as failed:
            raise StoreAway(f"the store: {failed.why}") from failed

    def _append(self, tag: str, append: Rule[Any]) -> None:
        if self.together is None:
            raise AssertionError("the log is elsewhere")
        self.together.within(tag, of_incarnation(append, self._place.incarnation))

    def _commit(
        self, tag: str, checkpoint: Checkpoint, units: Sequence[Unit] = ()
    ) -> PartialTransaction | None:
        part = self._store.commit(tag, checkpoint, units)
        if part is not None:
            checkpoint = checkpoint._replace(position=units[part.done - 1].position)
        self._calls.passed(tag, checkpoint)
        return part
