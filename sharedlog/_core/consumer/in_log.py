"""The log itself in the place of a database: state, position and outputs are one append (T4).

Kept for the shard TAG of the consumer NAME: ``state/NAME/TAG/done``, its checkpoint, put by the
append that also has the changes of its state, and the outputs; what is more than one append is
pending, and committed by the marker, which puts it. All of it is judged under the shard's fence.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.consumer.asked import Asked, Failed, Passed, Ran, Resend
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.names import done_key, hold_name, producer_name
from sharedlog._core.consumer.outputs import content_of, parted, recorded, recorded_marker
from sharedlog._core.consumer.snapshots import StateSnapshot, Writer, name_snapshot, read_snapshot
from sharedlog._core.consumer.state import Changes, packed, pieces
from sharedlog._core.consumer.travelling import Draw, Travelling
from sharedlog._core.draft import AppendBounds
from sharedlog._core.entry import EntryKind, committed_bodies
from sharedlog._core.errors import CorruptLog, HoldMoved, InvalidRequest, NewerFormat
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.holds import Hold, move, take
from sharedlog._core.named import Turn, check_any_name, named_key, once_named, seq_of
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed, committing, size_of
from sharedlog._core.reading import place_at
from sharedlog._core.spans import decided
from sharedlog._core.steps import Ends, Get, Lsns, Rule
from sharedlog._core.streams import substream_number

# Of changes that share an entry.
_ENTRY_BYTES = 128 << 10
# A snapshot is taken once there are so many bytes of changes behind the last one, and half of what
# the state has; or the log has gone on by so many entries, and one for each so many bytes of it.
_SINCE_BYTES, _ENTRIES, _PER_ENTRY = 1 << 20, 50_000, 100
_VALUE = struct.Struct(">BQQ")
_VERSION = 1


class InLog:
    """The keeper of a shard whose store is the log: a commit is in the log at once."""

    def __init__(
        self,
        name: str,
        tag: str,
        incarnation: str,
        bounds: AppendBounds,
        draw: Draw,
        changelog: Changelog,
    ) -> None:
        """``bounds``: of an append; ``changelog``: the shard's, read through wherever it is."""
        self.checkpoint = Checkpoint(0)
        self.sure = False
        self.owes = False
        self.changelog = changelog
        self._name = name
        self._tag = tag
        self._incarnation = incarnation
        self._bounds = bounds
        self._producer = producer_name(name, tag)
        check_any_name(self._producer)
        self._travelling = Travelling(self._producer, draw)
        self._fence = Fence("", 0)
        # The checkpoint as the log has it.
        self._kept: bytes | None = None
        self._held: dict[str, Hold] = {}
        self._writer: Writer | None = None
        # Bytes of changes that the snapshot which is being written has.
        self._writes = 0

    def take(self, fence: Fence, *, gone: Gone, anew: bool) -> Asked[None]:
        """Take the shard: nothing is written under an older lease any more, so what is read stays.

        The position is of this log, also where that was restored: so is all that it says.
        """
        self.sure = False
        self._writer = None
        self._fence = fence
        key, named, number = done_key(self._name, self._tag), named_key(self._producer), fence.name
        found = yield Get((key, named, fence_key(number)))
        check_fence(fence, found[fence_key(number)])
        before = _read(found[key])
        self._kept = found[key]
        position = before.position
        after = before.taken(gone, anew=anew)._replace(
            number=fence.number,
            position=position and position._replace(incarnation=self._incarnation),
            seq=seq_of(found[named]),
        )
        if (after.takeovers, after.attempts) != (before.takeovers, before.attempts):
            yield from self._put(after)
        self.checkpoint = after

    def recover(self, now_us: int, retention_us: int) -> Asked[None]:
        """Read the state: the newest snapshot, and what was committed after it."""
        yield from self._travelling.undo(self._fence)
        yield from self._begin(now_us, retention_us)
        while (yield from self.changelog.read()):
            pass
        yield Resend(self._tag, self.checkpoint)
        self.sure = True

    def begin(self) -> Changes:
        """Return the changes that handlers make to the shard's state."""
        return Changes(self.changelog.table)

    def note(self, attempts: int) -> Asked[None]:
        """Note, durably, how often the next message was begun alone."""
        yield from self._commit(self.checkpoint._replace(attempts=attempts))

    def commit(self, ran: Ran, position: Position | None) -> Asked[int]:
        """Commit by one append, or by the marker of several."""
        changed = {} if ran.changes is None else ran.changes.changed
        changes = self._placed(changed)
        appends = parted([*changes, *ran.outputs], self._bounds)
        seq = self.checkpoint.seq + bool(appends)
        checkpoint = Checkpoint(self._fence.number, position, seq)
        if not appends:
            yield from self._commit(checkpoint)
            yield Passed(self._tag, checkpoint)
            return ran.done
        put = Put(done_key(self._name, self._tag), _written(checkpoint))
        if len(appends) == 1:
            content = content_of(recorded(committing(appends[0])))
            commit = Commit((), (put,), self._entries(appends[0], seq))
        else:
            decision = yield from self._travelling.pend(appends, self._fence)
            content = content_of(recorded_marker(decision))
            commit = decided(EntryKind.MARKER, 0, seq, [decision], name=self._producer)
            commit = commit._replace(puts=(*commit.puts, put))
        turn = Turn(self._producer, seq, seq - 1)
        self.sure = False
        try:
            found = yield from once_named(turn, content, commit, self._fence)
        except Refused as refused:
            self.sure = True
            raise Failed("what it published was rolled back", counts=False) from refused
        self._travelling.decided()
        self.checkpoint = checkpoint
        self._kept = put.value
        self.changelog.committed(changed, sum(each.size for each in changes), found.lsn)
        self.sure = True
        yield Passed(self._tag, checkpoint)
        return ran.done

    def move(self, position: Position) -> Asked[None]:
        """Commit that there is nothing to do through a position; fails as ``commit``."""
        number, seq = self._fence.number, self.checkpoint.seq
        yield from self._commit(Checkpoint(number, position, seq))

    def settle(self) -> Rule[None]:
        """Roll back what a failed attempt left pending."""
        if self.sure and self._travelling.left:
            yield from self._travelling.undo(self._fence)

    def tend(self, now_us: int) -> Asked[bool]:
        """Write a piece of a snapshot, or move its hold if none is due; return if there is more."""
        if not self.sure:
            return False
        log = self.changelog
        if self._writer is None and self._due():
            self._writes = log.since
            self._writer = Writer(
                self._name,
                self._tag,
                log.snapshot,
                log.table,
                log.through,
                log.size,
                log.seals,
            )
        if self._writer is None:
            return False
        # One step of unknown fate may come late, behind the next snapshot: it is fenced off.
        self.sure = False
        try:
            snapshot = yield from self._writer.write(self._fence)
        except Refused:
            # A step at one that was not finished came late, and has undone some of this one. The
            # shard is taken over anew, under a number that refuses such steps.
            return False
        self.sure = True
        if snapshot is None:
            return True
        self._writer = None
        log.snapshot = snapshot
        log.since -= self._writes
        yield from self._move_hold(now_us)
        return False

    def pass_by(self, now_us: int, through: int) -> Asked[None]:
        """Give the snapshot a later position if nothing was changed since."""
        log = self.changelog
        if not self.sure:
            return
        log.passed(through)
        if not log.since and self._writer is None and log.through > log.snapshot.through:
            moved = log.snapshot._replace(through=log.through)
            self.sure = False
            yield from name_snapshot(self._name, self._tag, moved, self._fence, log.snapshot)
            self.sure = True
            log.snapshot = moved
        yield from self._move_hold(now_us)

    def _begin(self, now_us: int, retention_us: int) -> Rule[None]:
        """Take the hold of the change log; where there is no state, begin an empty one."""
        snapshot = yield from read_snapshot(self._name, self._tag)
        ends: Lsns = yield Ends()
        begin = ends.last if snapshot is None else snapshot.through
        self._held = yield from take(
            hold_name(self._name),
            {self.changelog.tag: begin + 1},
            self._incarnation,
            now_us,
            retention_us,
        )
        if snapshot is not None:
            # Who stood by has read on from an older one.
            self.changelog.snapshot = snapshot
            return
        if self.checkpoint.position is not None:
            raise CorruptLog(f"the state of {self._tag} of {self._name!r} is gone")
        empty = StateSnapshot(through=begin)
        yield from name_snapshot(self._name, self._tag, empty, self._fence, None)

    def _due(self) -> bool:
        log = self.changelog
        if not log.since:
            return False
        behind = log.through - log.snapshot.through
        return log.since >= max(_SINCE_BYTES, log.size // 2) or behind >= max(
            _ENTRIES, log.size // _PER_ENTRY
        )

    def _move_hold(self, now_us: int) -> Rule[None]:
        tag, through = self.changelog.tag, self.changelog.snapshot.through
        hold = self._held[tag]
        place: Position | None = None
        if through > hold.lsn:
            found = yield from place_at(through, self._incarnation)
            place = found and found._replace(substream=substream_number(tag))
        if place is None and 4 * (now_us - hold.renewed_us) <= hold.retention_us:
            return
        try:
            self._held = yield from move(self._held, {tag: place}, now_us)
        except HoldMoved:
            # By a successor: this one learns of it by its next commit.
            return

    def _commit(self, checkpoint: Checkpoint) -> Rule[None]:
        self.sure = False
        yield from self._put(checkpoint)
        self.sure = True

    def _put(self, checkpoint: Checkpoint) -> Rule[None]:
        key, value = done_key(self._name, self._tag), _written(checkpoint)
        # Of what is there: a copy of it, that comes late, changes nothing.
        follows = Condition(key, self._kept)
        try:
            yield Commit((follows, condition_of(self._fence)), (Put(key, value),))
        except Refused as refused:
            check_fence(self._fence, refused.found[fence_key(self._fence.name)])
            raise
        self._kept = value
        self.checkpoint = checkpoint

    def _placed(self, changed: Mapping[str, bytes | None]) -> list[Placed]:
        """Return changes as messages of the change log."""
        tag, found = self.changelog.tag, []
        for piece in pieces(changed.items(), _ENTRY_BYTES):
            try:
                envelope = packed(piece, self.changelog.seals, tag)
            except Exception as error:
                # The user's ``seal``.
                why = f"{type(error).__name__}: {error}"
                raise Failed(why, counts=True) from error
            found.append(Placed(envelope, tag, size_of(envelope, tag)))
        return found

    def _entries(self, messages: Sequence[Placed], seq: int) -> tuple[NewEntry, ...]:
        new = committing(messages)
        bodies = committed_bodies([each.envelope for each in new], 0, seq, self._producer)
        return tuple([NewEntry(body, each.tags) for body, each in zip(bodies, new, strict=True)])


def _written(checkpoint: Checkpoint) -> bytes:
    fixed = _VALUE.pack(_VERSION, checkpoint.takeovers, checkpoint.attempts)
    return fixed + str(checkpoint.position or "").encode()


def _read(value: bytes | None) -> Checkpoint:
    if value is None:
        return Checkpoint(0)
    try:
        version, takeovers, attempts = _VALUE.unpack_from(value)
        text = value[_VALUE.size :].decode()
        position = Position.parse(text) if text else None
    except (struct.error, UnicodeDecodeError, InvalidRequest) as error:
        raise CorruptLog("a consumer's checkpoint is not what was written") from error
    if version != _VERSION:
        raise NewerFormat(f"a checkpoint of version {version}: a newer release wrote it")
    return Checkpoint(0, position, 0, b"", takeovers, attempts)
