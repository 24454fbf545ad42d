"""Rules of DESIGN-LOG §14, each broken on purpose, for the simulator to find.

``tests/chaos/mutations.py`` has them in its table; those of T6 are in ``consumer_call_mutations``,
those of a Redis in ``consumer_redis_mutations``.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from chaos.sim.consumer.server_store import ServerStore
from chaos.sim.consumer.sqlite_store import FileStore
from sharedlog._consumer import tables
from sharedlog._consumer.running import Runner
from sharedlog._consumer.tables import POSTGRES
from sharedlog._core import homes, named, sweeping
from sharedlog._core.commit import Condition
from sharedlog._core.consumer import holding, in_log, keeping, snapshots
from sharedlog._core.consumer.asked import Bury, Ran, Run
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.in_log import InLog
from sharedlog._core.consumer.keeping import InStore
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.one_file import InOneFile
from sharedlog._core.consumer.shard import Shard, Turned
from sharedlog._core.consumer.state import Changes
from sharedlog._core.errors import AlreadyCommitted, LogError
from sharedlog._core.position import Position
from sharedlog._core.publishing import committing
from tests.chaos.consumer_call_mutations import BROKEN as OF_CALLS
from tests.chaos.consumer_redis_mutations import BROKEN as OF_REDIS

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]
_patched = unittest.mock.patch.object


def _together(*patches: _Patch) -> _Patch:
    stack = ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


def _nothing(*_: Any, **__: Any) -> Any:
    yield from ()


# A take-over, and the fences (T1).


def _anybody(statement: str) -> _Patch:
    """A statement of the store's that is carried out whatever the fence is."""
    sql = getattr(tables, statement)
    return _patched(tables, statement, sql.replace("fence = ?", "? > 0"))


def commits_by_anybody() -> _Patch:
    return _anybody("_COMMIT")


def read_before_fenced() -> _Patch:
    """What is there is read, and then the fence is set."""

    def breaking(store: Any, read: Callable[[Any, Callable[[Any], Any]], Any]) -> _Patch:
        original = store.take

        def take(self: Any, tag: str, number: int, **how: Any) -> Checkpoint:
            statement = (
                "SELECT position, seq, intent, takeovers, attempts, epoch "
                "FROM sharedlog_consumer WHERE shard = ?"
            )
            row = read(self, lambda execute: execute(statement, (tag,)).fetchone())
            self._cast.strands.current.sleep(0.02)
            found: Checkpoint = original(self, tag, number, **how)
            if row is None:
                return found
            position, seq, intent, takeovers, attempts, epoch = row
            place = Position.parse(position) if position else None
            return Checkpoint(number, place, seq, intent, takeovers, attempts, epoch=epoch)

        return _patched(store, "take", take)

    def from_file(self: FileStore, work: Callable[[Any], Any]) -> Any:
        with self._transaction() as execute:
            return work(execute)

    def from_server(self: ServerStore, work: Callable[[Any], Any]) -> Any:
        with self._working() as execute:
            return work(lambda statement, given: execute(POSTGRES.of(statement), given))

    return _together(breaking(FileStore, from_file), breaking(ServerStore, from_server))


def intents_not_sent_again() -> _Patch:
    """What the one before may not have appended is taken for appended."""
    original = InStore.recover

    def recover(self: InStore, now_us: int, retention_us: int) -> Any:
        self.owes = False
        yield from original(self, now_us, retention_us)

    return _patched(InStore, "recover", recover)


def intents_sent_anew() -> _Patch:
    """An intent is appended as what comes next, and not as what it was recorded as."""
    original = InStore.recover

    def recover(self: InStore, now_us: int, retention_us: int) -> Any:
        if self.owes:
            highest = yield from named.highest_of(self._producer)
            self.checkpoint = self.checkpoint._replace(seq=highest + 1)
        yield from original(self, now_us, retention_us)

    return _patched(InStore, "recover", recover)


def state_under_no_lease() -> _Patch:
    """A state is committed whoever has the shard."""
    original = in_log.once_named

    def once_named(turn: Any, content: bytes, commit: Any, _: Any) -> Any:
        return original(turn, content, commit, None)

    return _patched(in_log, "once_named", once_named)


def goes_on_with_a_backup() -> _Patch:
    """Nobody holds the store against the log: what the log has is taken for what it is to get."""
    append = InStore._append

    def appended(self: InStore, outputs: Any) -> Any:
        try:
            yield from append(self, outputs)
        except LogError as error:
            if not isinstance(error, AlreadyCommitted):
                raise

    def went_back(*_: Any) -> Any:
        yield from ()
        return AlreadyCommitted("it is there")

    def highest_of(_: str) -> Any:
        yield from ()
        return 0

    take = holding.ShardHold.take

    def taken(self: Any, fence: Any, checkpoint: Any, *rest: Any) -> Any:
        try:
            return (yield from take(self, fence, checkpoint, *rest))
        except AlreadyCommitted:
            return checkpoint.position or self._held[self._tag].lsn

    return _together(
        _patched(keeping, "highest_of", highest_of),
        _patched(keeping, "went_back", went_back),
        _patched(holding, "went_back", went_back),
        _patched(holding.ShardHold, "take", taken),
        _patched(InStore, "_append", appended),
    )


# What is in the log before the store has committed (T2), and afterwards (T3).


def published_before() -> _Patch:
    original = InStore.commit

    def commit(self: InStore, ran: Ran, position: Position | None) -> Any:
        if ran.outputs and len(keeping.parted(ran.outputs, self._bounds)) == 1:
            messages = committing(ran.outputs)
            seq, content = self.checkpoint.seq, keeping.content_of(keeping.recorded(messages))
            turn = named.Turn(self._producer, seq + 1, seq)
            yield from named.append_named(turn, content, messages, fence=self._fence)
        yield from original(self, ran, position)

    return _patched(InStore, "commit", commit)


def committed_without_its_append() -> _Patch:
    """Where the log is in the store's database: what is published is no part of the commit."""

    def commit(self: InOneFile, ran: Ran, position: Position | None) -> Any:
        yield from self._commit(self._next(position, self.checkpoint.seq + bool(ran.outputs), b""))

    return _patched(InOneFile, "_append_and_commit", commit)


def marked_before() -> _Patch:
    """The marker of what travels is appended, and then the store commits."""
    original = InStore._commit

    def commit(self: InStore, checkpoint: Checkpoint, *units: Any) -> Any:
        outputs = keeping.intended(checkpoint.intent) if checkpoint.intent else []
        if isinstance(outputs, keeping.ProducerDecision):
            turn = named.Turn(self._producer, checkpoint.seq, checkpoint.seq - 1)
            content = keeping.content_of(checkpoint.intent)
            yield from named.decide_named(turn, content, [outputs], fence=self._fence)
        return (yield from original(self, checkpoint, *units))

    return _patched(InStore, "_commit", commit)


def left_pending() -> _Patch:
    """What a failed try, or the one before, has pending is left there."""
    return _patched(homes, "retire", _nothing)


def swept() -> _Patch:
    return _patched(sweeping, "homed_key", lambda producer: f"nowhere/{producer}")


def ahead_of_the_log() -> _Patch:
    """What a transaction owes is appended once the next one is in the store."""
    settle, commit = InStore.settle, InStore._commit

    def put_off(self: InStore) -> Any:
        # At a take-over as always.
        if self.sure and self.owes and isinstance(self._outputs, list):
            return
        yield from settle(self)

    def committed(self: InStore, checkpoint: Checkpoint, *units: Any) -> Any:
        owed = (self._outputs, self.checkpoint) if self.owes and self._outputs else None
        part = yield from commit(self, checkpoint, *units)
        if owed is not None:
            outputs, before = owed
            turn = named.Turn(self._producer, before.seq, before.seq - 1)
            content = keeping.content_of(before.intent)
            yield from named.append_named(turn, content, outputs, fence=self._fence)
        return part

    return _together(_patched(InStore, "settle", put_off), _patched(InStore, "_commit", committed))


# State in the log (T4).


def snapshot_as_of_its_end() -> _Patch:
    """A snapshot is said to have what was changed while it was written."""
    original = InLog.tend

    def tend(self: InLog, now_us: int) -> Any:
        if self._writer is not None:
            now = self._writer._snapshot._replace(through=self.changelog.through)
            self._writer._snapshot = now
        return (yield from original(self, now_us))

    return _patched(InLog, "tend", tend)


def changes_not_read() -> _Patch:
    """A state is its newest snapshot, or what a standby had read."""
    original = InLog.recover

    def recover(self: InLog, now_us: int, retention_us: int) -> Any:
        log = self.changelog

        def read() -> Any:
            if log._through is None:
                yield from log._load()
            return False

        with _patched(log, "read", read):
            yield from original(self, now_us, retention_us)

    return _patched(InLog, "recover", recover)


def trimmed_ahead() -> _Patch:
    """The hold of a change log follows what was changed, and not the snapshot."""
    original = InLog._move_hold

    def move_hold(self: InLog, now_us: int) -> Any:
        log = self.changelog
        kept, log.snapshot = log.snapshot, log.snapshot._replace(through=log.through)
        rule = original(self, now_us)
        answer: Any = None
        try:
            while True:
                step = rule.send(answer)
                log.snapshot = kept
                answer = yield step
                log.snapshot = kept._replace(through=log.through)
        except StopIteration:
            log.snapshot = kept

    return _patched(InLog, "_move_hold", move_hold)


def checkpoint_goes_back() -> _Patch:
    """A checkpoint is put whatever is there."""

    def condition(key: str, value: bytes | None) -> Condition:
        return Condition("of/nobody", None) if key.endswith("/done") else Condition(key, value)

    return _patched(in_log, "Condition", condition)


def snapshot_goes_back() -> _Patch:
    """What is written of a snapshot is written whatever is there."""
    return _patched(snapshots, "_under", _unconditional(snapshots._under))


def _unconditional(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda fence, follows, *puts: original(fence, (), *puts)


def failed_changes_kept() -> _Patch:
    """What a handler changes of a state is changed, whatever becomes of its transaction."""
    original = Changes.put

    def put(self: Changes, key: str, value: bytes | None) -> None:
        original(self, key, value)
        if value is not None:
            self._table[key] = value  # type: ignore[index]

    return _patched(Changes, "put", put)


# What fails (T5).


def unknown_fate_believed() -> _Patch:
    """A commit that was not answered is taken for one that did not happen."""

    def always(self: Any, value: bool) -> None:
        self.__dict__["sure"] = True

    known = property(lambda self: self.__dict__.get("sure", False), always)
    return _together(
        _patched(InStore, "sure", known, create=True),
        _patched(InLog, "sure", known, create=True),
    )


def not_counted() -> _Patch:
    def alone(self: Shard, message: Any) -> Any:
        return self._transact(Run([message], self.keeper.begin()))

    return _patched(Shard, "_alone", alone)


def deaths_not_counted() -> _Patch:
    """Who takes over from a process that died begins as if it had ended."""

    def of(keeper: Any) -> _Patch:
        original = keeper.take

        def take(self: Any, fence: Any, *, gone: Gone, anew: bool) -> Any:
            return original(self, fence, gone=Gone.LEFT, anew=anew)

        return _patched(keeper, "take", take)

    return _together(of(InStore), of(InLog))


def skipped_silently() -> _Patch:
    """What is given up moves the shard, and nothing else."""
    original = Runner.bury

    def bury(self: Runner, *given: Any) -> Ran:
        return original(self, *given)._replace(outputs=())

    return _patched(Runner, "bury", bury)


def failed_together_again() -> _Patch:
    """After an error the messages of a transaction are tried together again."""
    original = Shard._transact

    def transact(self: Shard, step: Run | Bury) -> Any:
        before = self._limit
        turned: Turned = yield from original(self, step)
        if turned.failed is not None:
            self._limit = before
        return turned

    return _patched(Shard, "_transact", transact)


def timer_counts_anew() -> _Patch:
    """A timer's transaction is committed while a message is counted."""
    original = Shard.fire

    def fire(self: Shard, timer: int) -> Any:
        kept = self.keeper.checkpoint
        self.keeper.checkpoint = kept._replace(attempts=0, takeovers=0)
        return (yield from original(self, timer))

    return _patched(Shard, "fire", fire)


# Read your writes (T7).


def held_before() -> _Patch:
    """A hold follows what was read."""
    original: Any = Shard.done

    def done(self: Shard) -> Any:
        found = original.fget(self)
        return found._replace(place=self._ready[-1].position) if self._ready else found

    return _patched(Shard, "done", property(done))


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a commit whatever the store's fence is", "§14: T1", commits_by_anybody, 9),
    ("a checkpoint read before its fence is set", "§14: T1", read_before_fenced, 9),
    ("an intent not sent again", "§14: T1", intents_not_sent_again, 1),
    ("an intent sent again as another seq", "§14: T1", intents_sent_anew, 1),
    ("a state committed under no lease", "§14: T1", state_under_no_lease, 31),
    ("a store that went back goes on", "§14: T1", goes_on_with_a_backup, 44),
    ("published before the store commits", "§14: T2", published_before, 1),
    ("a commit without the append in it", "§14: T2", committed_without_its_append, 25),
    ("a marker before the store commits", "§14: T2", marked_before, 1),
    ("what was pending is left there", "§14: T2", left_pending, 1),
    ("a shard's pending outputs swept", "§14: T2", swept, 49),
    ("a transaction ahead of the intent before it", "§14: T3", ahead_of_the_log, 2),
    ("a snapshot as of its end", "§14: T4", snapshot_as_of_its_end, 7),
    ("changes behind a snapshot not read", "§14: T4", changes_not_read, 3),
    ("changes trimmed ahead of their snapshot", "§14: T4", trimmed_ahead, 11),
    ("a checkpoint in the log goes back", "§14: T4", checkpoint_goes_back, 15),
    ("a snapshot goes back", "§14: T4", snapshot_goes_back, 59),
    ("what a failed handler changed is kept", "§14: T4", failed_changes_kept, 3),
    ("a commit of unknown fate taken for none", "§14: T5", unknown_fate_believed, 3),
    ("a handler's failure not counted", "§14: T5", not_counted, 1),
    ("a process's death not counted", "§14: T5", deaths_not_counted, 7),
    ("a message given up without a dead letter", "§14: T5", skipped_silently, 1),
    ("what failed is tried together again", "§14: T5", failed_together_again, 1),
    ("a timer commits while a message is counted", "§14: T5", timer_counts_anew, 12),
    ("a hold ahead of its store", "§14: T7", held_before, 1),
    *OF_CALLS,
    *OF_REDIS,
)
