"""A follower: where it begins, what it reads, what it has done (DESIGN-LOG §12 L6, §13 C4)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.calling import portable
from sharedlog._core.entry import read_row
from sharedlog._core.errors import InvalidRequest, TrimmedLog
from sharedlog._core.holds import BEGINNING, END, Hold, all_holds, check_held, move, take
from sharedlog._core.merging import AHEAD_BYTES, Merger
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, Reader, place_at, verify
from sharedlog._core.steps import Ends, Lsns, Read, Rows, Rule
from sharedlog._core.streams import substream_number
from sharedlog._core.times import first_after
from sharedlog._core.uncommitted import AllReader
from sharedlog._core.whole import read_trimmed

# Behind every message of a commit.
_LAST_ORDINAL = (1 << 32) - 1
# So many places that are done are not worth a copy.
_KEPT = 64


class Moment(NamedTuple):
    """Microseconds since 1970: what was appended later is wanted."""

    at_us: int


class From(NamedTuple):
    """An LSN, the first of an append: commits from there on are wanted."""

    lsn: int


class Kept(NamedTuple):
    """What was read, and through which LSN, until the reader's user has it."""

    found: list[Committed]
    through: int


Start = Position | int | str | Moment | Mapping[str, Position | int | str | None] | None


class Follower:
    """Follows some substreams of a stream; one step at a time.

    ``start``: behind a position (of several substreams: one that says its substream, behind
    which everything is that was delivered before it, or one for each tag, where what is not
    named begins at the beginning), at an LSN, a ``Moment``, ``BEGINNING`` (None) or ``END``.
    ``name``: it has a hold of each substream, and goes on from there if it had one and ``start``
    is no position.
    ``committed``: False shows what is pending or rolled back, too, in the order of the log.
    ``ahead_bytes``: about how much it reads ahead. ``through``: through which LSN it returned
    everything already, of a follower that goes on in the place of another one. ``remembers``:
    False where ``done`` is told elsewhere. ``held``: it had its holds, of a follower that goes on:
    no new one is made.
    """

    def __init__(
        self,
        tags: Sequence[str],
        incarnation: str,
        start: Start,
        *,
        name: str | None = None,
        retention_us: int = 0,
        committed: bool = True,
        ahead_bytes: int = AHEAD_BYTES,
        through: int = 0,
        remembers: bool = True,
        held: bool = False,
    ) -> None:
        """Nothing is asked of the log yet."""
        self._tags = sorted(tags, key=substream_number)
        self._incarnation = incarnation
        self._start = start
        self._name = name
        self._retention_us = retention_us
        self._committed = committed
        self._ahead_bytes = ahead_bytes
        self._remembers = remembers
        self._goes_on = held
        self._reader: Merger | AllReader | None = None
        # Where each begins, once that is known; and through which LSN all was returned since.
        self._starts: dict[str, Position | int] | None = None
        self._returned = through
        # What was read and not taken yet.
        self._kept: Kept | None = None
        self._held: dict[str, Hold] = {}
        self._waiting = Outstanding()

    @property
    def through(self) -> int:
        """Through which LSN everything was returned."""
        return self._returned

    @property
    def starts(self) -> Mapping[str, Position | int]:
        """Where each substream began, once it has."""
        return self._starts or {}

    @property
    def begun(self) -> bool:
        """Whether it is beyond all beginnings: everything that follows is wanted."""
        return self._starts is not None and self._returned >= max(
            map(_before, self.starts.values())
        )

    @property
    def held(self) -> Mapping[str, Hold]:
        """Its holds, as it saw them last."""
        return self._held

    @property
    def at_beginning(self) -> bool:
        """Whether it begins with whatever is whole."""
        return self._start is None or self._start == BEGINNING

    def begin(self, now_us: int) -> Rule[None]:
        """Find where to begin, and take the holds; once is enough.

        Raises ``LogForked``, ``TrimmedLog``, ``InvalidRequest``.
        """
        if self._starts is None:
            starts = yield from find_starts(
                self._tags, self._incarnation, self._start, committed=self._committed
            )
            if self._name is not None:
                self._held = yield from take(
                    self._name,
                    starts,
                    self._incarnation,
                    now_us,
                    self._retention_us,
                    held=self._goes_on,
                )
                for hold in self._held.values():
                    hold.check_incarnation(self._incarnation)
                starts = {
                    tag: start if self._is_said(tag) else self._held[tag].start()
                    for tag, start in starts.items()
                }
            self._starts = starts
        if self._reader is None:
            starts = {tag: self._resumed(start) for tag, start in self._starts.items()}
            reader: Merger | AllReader
            if self._committed:
                reader = Merger(starts, self._incarnation, ahead_bytes=self._ahead_bytes)
            else:
                reader = AllReader(
                    {
                        tag: start.lsn + 1 if isinstance(start, Position) else start
                        for tag, start in starts.items()
                    },
                    self._incarnation,
                )
            yield from reader.begin()
            self._reader = reader

    def read(self, now_us: int) -> Rule[list[Committed]]:
        """Return the next messages; none: there are none through ``through``.

        After an error it goes on with what was not returned yet.
        """
        found = yield from self.look(now_us)
        self.take(found)
        return found

    def look(self, now_us: int) -> Rule[list[Committed]]:
        """Return the next messages, and keep them: the same list again, until it is taken.

        A signal's exception may come between any two steps of the thread that reads, so nothing
        moves on before the messages are where the next delivery looks.
        """
        if self._kept is None:
            yield from self._look(now_us)
        return self._kept.found if self._kept is not None else []

    def take(self, found: list[Committed]) -> None:
        """Say that what ``look`` returned is in other hands; again, or of another list: nothing."""
        kept = self._kept
        if kept is None or kept.found is not found:
            return
        if self._name is not None and self._remembers:
            self._waiting.add(found)
        self._returned = kept.through
        self._kept = None

    def skip(self, through: int) -> None:
        """Say that everything through an LSN, beyond all beginnings, was returned elsewhere."""
        self._returned, self._reader, self._kept = through, None, None

    def _look(self, now_us: int) -> Rule[None]:
        """Read, and keep what is found."""
        yield from self.begin(now_us)
        # What an error leaves half done is not used again.
        reader, self._reader = self._reader, None
        if reader is None:
            raise AssertionError("begin makes it")
        found = yield from reader.read()
        self._kept = Kept(found, reader.through)
        self._reader = reader

    def done(self, position: Position) -> None:
        """Say that a message, and all that were returned before it, are not wanted again."""
        if self._name is None:
            raise InvalidRequest("a follower without a name has no hold to move")
        position.check_incarnation(self._incarnation)
        if self._waiting.done(position):
            return
        for hold in self._held.values():
            at = substream_number(hold.tag)
            done = self._waiting.moved.get(at, hold.position)
            if position.substream == at and done is not None and position[:2] <= done[:2]:
                return
        raise InvalidRequest(f"{position} was not delivered by this follower")

    def move(self, now_us: int, *, idle: bool) -> Rule[None]:
        """Have the log know what is done. ``idle``: and through where there was nothing to do.

        Raises ``HoldMoved``, ``TrimmedLog`` if a hold was dropped.
        """
        places: dict[str, Position | None] = {}
        moved = dict(self._waiting.moved)
        for tag, hold in self._held.items():
            done = moved.get(substream_number(tag))
            # Who begins at a position of its own may be behind the hold.
            if done is not None and done[:2] > hold.place:
                places[tag] = done
            elif 4 * (now_us - hold.renewed_us) > hold.retention_us:
                places[tag] = None
        if idle:
            yield from self._pass(places)
        if places:
            self._held = yield from self._move_holds(places, now_us)
        for at, place in moved.items():
            if self._waiting.moved.get(at) == place:
                del self._waiting.moved[at]

    def explain(self, error: TrimmedLog) -> Rule[TrimmedLog]:
        """Return what a reader is told of a trim, or of its hold that was dropped."""
        trimmed = yield from read_trimmed()
        if self._name is not None:
            held = {each.tag: each for each in (yield from all_holds(self._name))}
            for hold in self._held.values():
                check_held(held.get(hold.tag), hold, trimmed)
        read = max([self._returned, min(map(_before, (self._starts or {}).values()), default=0)])
        first = read + 1
        if self._starts is None or first >= trimmed.whole:
            return TrimmedLog(str(error), trimmed.whole, error.lost)
        return TrimmedLog(
            f"it was read through LSN {read}, and commits are whole from LSN "
            f"{trimmed.whole} on: what is between was trimmed",
            trimmed.whole,
            (first, trimmed.whole - 1),
        )

    def _is_said(self, tag: str) -> bool:
        """Whether its user keeps the position of a substream, which counts before the hold."""
        start = self._start
        return isinstance(start.get(tag) if isinstance(start, Mapping) else start, Position)

    def _resumed(self, start: Position | int) -> Position | int:
        """Return where to go on after an error: behind what was returned."""
        return (
            start if _before(start) > self._returned or not self._returned else self._returned + 1
        )

    def _move_holds(
        self, places: Mapping[str, Position | None], now_us: int
    ) -> Rule[dict[str, Hold]]:
        return (yield from move(self._held, places, now_us))

    def _pass(self, places: dict[str, Position | None]) -> Rule[None]:
        if not isinstance(self._reader, Merger) or self._kept is not None:
            # What was read and not taken is not done.
            return
        known: dict[int, Position | None] = {}
        waiting = self._waiting.substreams
        for tag, through in self._reader.places.items():
            hold = self._held[tag]
            at = substream_number(tag)
            if at in waiting or through <= max(hold.lsn, self._waiting.last(at)):
                continue
            if through not in known:
                known[through] = yield from place_at(through, self._incarnation)
            place = known[through]
            if place is not None:
                places[tag] = place._replace(substream=at)


def find_starts(
    tags: Sequence[str], incarnation: str, start: Start, *, committed: bool = True
) -> Rule[dict[str, Position | int]]:
    """Return where each substream begins, by their numbers; see ``Follower``.

    Raises ``InvalidRequest``, ``LogForked``, ``TrimmedLog``.
    """
    if isinstance(start, Moment):
        return dict.fromkeys(tags, (yield from first_after(start.at_us)))
    if isinstance(start, Position):
        return (yield from _behind(tags, incarnation, start, committed=committed))
    if start == END:
        ends: Lsns = yield Ends()
        return dict.fromkeys(tags, ends.last + 1)
    if start is None or start == BEGINNING or isinstance(start, Mapping):
        trimmed = yield from read_trimmed()
        named = start if isinstance(start, Mapping) else {}
        behind = 0
        if END in named.values():
            there: Lsns = yield Ends()
            behind = there.last + 1
        found: dict[str, Position | int] = {}
        for tag in tags:
            place = named.get(tag)
            if isinstance(place, Position | int):
                found[tag] = place
            else:
                found[tag] = behind if place == END else trimmed.whole
        return found
    if not isinstance(start, int):
        raise InvalidRequest(f"{start!r} is no place to begin at: beginning, end, a position")
    return dict.fromkeys(tags, start)


@portable
def read_some(tag: str, incarnation: str, start: Start, limit: int) -> Rule[list[Committed]]:
    """Return the committed messages of one substream behind a place: about ``limit``."""
    starts = yield from find_starts([tag], incarnation, start)
    batch = yield from Reader(tag, incarnation, starts[tag]).read(limit)
    return batch.messages


def _behind(
    tags: Sequence[str], incarnation: str, start: Position, *, committed: bool
) -> Rule[dict[str, Position | int]]:
    start.check_incarnation(incarnation)
    if len(tags) == 1:
        if start.substream != substream_number(tags[0]):
            raise InvalidRequest(f"{start} is of another substream than {tags[0]}")
        return {tags[0]: start}
    if not committed:
        yield from verify(start)
        return dict.fromkeys(tags, start.lsn + 1)
    entry = yield from verify(start)
    found: dict[str, Position | int] = {}
    for tag in tags:
        at = substream_number(tag)
        # Of one commit the substreams are delivered by their numbers.
        if at < start.substream:
            found[tag] = start._replace(ordinal=_LAST_ORDINAL, substream=at)
        elif at == start.substream:
            found[tag] = start
        else:
            found[tag] = entry.lsn - entry.index
    return found


def append_at(lsn: int) -> Rule[int]:
    """Return the first LSN of the append that this one is in, where a follower may begin."""
    rows: Rows = yield Read(lsn - 1, 1)
    return lsn - read_row(rows.rows[0]).index if rows.rows else lsn


class Outstanding:
    """What was returned and is not done yet, by substream: sixteen bytes each.

    Messages are returned by commit, then substream, then their order there.
    """

    def __init__(self) -> None:
        """Nothing."""
        self._waiting: dict[int, _Places] = {}
        # Through where each is done, where the log does not know it yet.
        self.moved: dict[int, Position] = {}

    def add(self, messages: Sequence[Committed]) -> None:
        """These were returned, too; again after an interrupt they change nothing."""
        found: dict[int, list[Position]] = {}
        for each in messages:
            found.setdefault(each.position.substream, []).append(each.position)
        for substream, positions in found.items():
            places = self._waiting.get(substream)
            if places is None:
                places = self._waiting[substream] = _Places()
            places.add(positions)

    def done(self, position: Position) -> bool:
        """Take this one as done, with all before it; say whether it was waiting."""
        own = self._waiting.get(position.substream)
        if own is None or not own.has(position):
            return False
        passed = {at: each.until(position, at) for at, each in self._waiting.items()}
        # Each step may be taken again: what is passed is noted before it goes, and its own last.
        for at, count in passed.items():
            if count:
                self.moved[at] = self._waiting[at].at(count - 1, at, position.incarnation)
        for at, count in passed.items():
            if at != position.substream:
                self._waiting[at].drop(count)
        own.drop(passed[position.substream])
        return True

    @property
    def substreams(self) -> set[int]:
        """Of which something is not done."""
        return {at for at, each in self._waiting.items() if len(each)}

    def last(self, substream: int) -> int:
        """Return the LSN through which a substream is done, if the log does not know it yet."""
        place = self.moved.get(substream)
        return 0 if place is None else place.lsn


class _Places:
    """The places of one substream's messages, in their order."""

    def __init__(self) -> None:
        # The LSN of each; of each ordinal and checksum in one; how many are gone of the first. The
        # last that was added stays, also when it is gone.
        self._kept: tuple[array[int], array[int], int] = array("Q"), array("Q"), 0

    def __len__(self) -> int:
        lsns, _, gone = self._kept
        return len(lsns) - gone

    def add(self, positions: Sequence[Position]) -> None:
        """Add what is behind all that is there, or was."""
        lsns, rests, _ = self._kept
        # What an interrupt has left of the step before.
        del rests[len(lsns) :]
        last = (lsns[-1], rests[-1]) if lsns else (0, 0)
        fresh = [
            (lsn, ordinal << 32 | checksum)
            for lsn, ordinal, checksum, _, _ in positions
            if (lsn, ordinal << 32 | checksum) > last
        ]
        rests.fromlist([rest for _, rest in fresh])
        lsns.fromlist([lsn for lsn, _ in fresh])

    def has(self, position: Position) -> bool:
        """Whether a message is there."""
        lsns, rests, gone = self._kept
        at = self.until(position, position.substream) - 1 + gone
        wanted = (position.lsn, position.ordinal << 32 | position.checksum)
        return at >= gone and (lsns[at], rests[at]) == wanted

    def until(self, position: Position, substream: int) -> int:
        """Return how many of them, which are of a substream, come no later than a message."""
        lsns, rests, gone = self._kept
        first = bisect_left(lsns, position.lsn, gone)
        if substream > position.substream:
            return first - gone
        behind = bisect_right(lsns, position.lsn, first)
        if substream == position.substream:
            behind = bisect_left(rests, (position.ordinal + 1) << 32, first, behind)
        return behind - gone

    def at(self, index: int, substream: int, incarnation: str) -> Position:
        """Return a message's position."""
        lsns, rests, gone = self._kept
        lsn, rest = lsns[gone + index], rests[gone + index]
        return Position(lsn, rest >> 32, rest & _LAST_ORDINAL, incarnation, substream)

    def drop(self, count: int) -> None:
        """Drop so many of the first."""
        lsns, rests, gone = self._kept
        gone += count
        if gone > _KEPT and 2 * gone > len(lsns):
            # Each is copied once or twice in its time.
            lsns, rests, gone = lsns[gone - 1 :], rests[gone - 1 :], 1
        self._kept = lsns, rests, gone


def _before(start: Position | int) -> int:
    """The LSN through which was read where a reader begins there."""
    return start.lsn if isinstance(start, Position) else start - 1
