"""Oracle: what must be in a log, in which order, and what was read of it.

It reads the rows by itself, by no rule of the product: what a producer has pending is decided by
the first marker after it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaos.sim.log.series import Delivered
from sharedlog._core.entry import Entry, EntryKind, Row, read_row
from sharedlog._core.names import NameKind, owner_of
from sharedlog._core.producers import NewMessage

__all__ = ["Delivered", "Oracle", "Outcome", "committed", "merged"]


class Outcome(enum.Enum):
    """What is known of a call in the end."""

    ALL = "appended"
    NONE = "refused"
    ANY = "unknown"


@dataclass(slots=True)
class _Call:
    writer: int
    messages: Sequence[NewMessage]
    outcome: Outcome = Outcome.ANY
    lsn: int | None = None


class Oracle:
    """What writers were told, while it happens; the judgement afterwards."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        # In the order in which they began.
        self._calls: dict[int, _Call] = {}
        # Contents that no follower may ever read.
        self._never: set[bytes] = set()
        # Under which fence and number a producer wrote a seq.
        self._fenced: dict[tuple[int, int], tuple[str, int]] = {}
        self.restores = 0

    @property
    def restored(self) -> bool:
        """Whether the log ever was another one."""
        return self.restores > 0

    def begin(self, call: int, writer: int, messages: Sequence[NewMessage]) -> None:
        """Note what is about to be appended."""
        self._calls[call] = _Call(writer, messages)

    def fenced(self, producer: int, seq: int, fence: tuple[str, int] | None) -> None:
        """Note under what a seq is written."""
        if fence is None:
            self._fenced.pop((producer, seq), None)
        else:
            self._fenced[producer, seq] = fence

    def never(self, messages: Iterable[NewMessage]) -> None:
        """Note what is sent, and must not be committed."""
        self._never.update(each.envelope for each in messages)

    def ended(self, call: int, outcome: Outcome, lsn: int | None = None) -> None:
        """Note what a writer was told."""
        self._calls[call].outcome = outcome
        self._calls[call].lsn = lsn

    def outcomes(self) -> dict[str, int]:
        """Count what was told."""
        return dict(Counter(call.outcome.value for call in self._calls.values()))

    def broken(self, rule: str, text: str) -> None:
        """Note what nothing may cause."""
        self.problems.append(f"{rule}: {text}")

    def restore(self, rows: Sequence[Row]) -> None:
        """Note that a backup with these rows need not have what was appended after it."""
        self.restores += 1
        # What was sent, and is sent again, may be the first of its seq now.
        self._never.clear()
        for call in self._calls.values():
            if call.outcome is Outcome.ALL:
                call.outcome, call.lsn = Outcome.ANY, None
        kept = {(entry.producer, entry.seq) for entry in map(read_row, rows)}
        self._fenced = {key: fence for key, fence in self._fenced.items() if key in kept}

    def judge(
        self,
        rows: Sequence[Row],
        raised: Mapping[str, Sequence[tuple[int, int]]],
        retired: Mapping[int, int],
    ) -> dict[str, list[Delivered]]:
        """Find what is wrong with the log; what it has committed, by tag."""
        found = committed(rows)
        places: dict[bytes, list[tuple[str, int]]] = {}
        for tag, delivered in found.items():
            for envelope, lsn in delivered:
                places.setdefault(envelope, []).append((tag, lsn))
        for envelope in sorted(self._never & set(places)):
            self.broken("labels", f"{envelope!r} was never to be committed")
        for number, call in self._calls.items():
            self._judge(number, call, places)
        entries = [read_row(row) for row in rows]
        self._judge_order()
        self._judge_names(entries)
        self._judge_fences(entries, raised)
        for entry in entries:
            if entry.lsn > retired.get(entry.producer, entry.lsn):
                self.broken("retired", f"LSN {entry.lsn} is of producer {entry.producer}, retired")
        return found

    def _judge(
        self, number: int, call: _Call, places: Mapping[bytes, list[tuple[str, int]]]
    ) -> None:
        found = []
        for message in call.messages:
            where = sorted(places.get(message.envelope, []))
            tags = [tag for tag, _ in where]
            if len(tags) > len(set(tags)):
                self.broken("doubled", f"{message.envelope!r} stands at {where}")
            elif tags and tags != sorted(message.tags):
                self.broken("torn", f"{message.envelope!r} stands only at {where}")
            found.append({lsn for _, lsn in where})
        there = set().union(*found)
        if len(there) > 1 or (there and not all(found)):
            self.broken("torn", f"call {number} is committed at {sorted(there)}, in part")
        if call.outcome is Outcome.ALL and not there:
            self.broken("lost", f"call {number} was appended, and is not there")
        if call.outcome is Outcome.NONE and there:
            self.broken("labels", f"call {number} was refused, and stands at {sorted(there)}")
        if call.lsn is not None and there and there != {call.lsn}:
            self.broken("answers", f"call {number} is at {sorted(there)}, and was told {call.lsn}")

    def _judge_order(self) -> None:
        last: dict[int, int] = {}
        for number, call in self._calls.items():
            if call.lsn is None or call.outcome is not Outcome.ALL:
                continue
            if call.lsn < last.get(call.writer, 0):
                self.broken("order", f"call {number} stands before one that its writer made first")
            last[call.writer] = call.lsn

    def _judge_fences(
        self, entries: Sequence[Entry], raised: Mapping[str, Sequence[tuple[int, int]]]
    ) -> None:
        for entry in entries:
            if entry.kind is EntryKind.ROLLBACK:
                # A process that retires a producer holds no fence, and shows its last seq.
                continue
            name, number = self._fenced.get((entry.producer, entry.seq), ("", 0))
            over = [tail for higher, tail in raised.get(name, ()) if higher > number]
            if over and entry.lsn > min(over):
                self.broken("fenced", f"LSN {entry.lsn} is under number {number} of {name}")

    def _judge_names(self, entries: Sequence[Entry]) -> None:
        """A name's seqs stand there once each, one after the other."""
        last: dict[str, tuple[int, int]] = {}
        for entry in entries:
            if not entry.name:
                continue
            seq, at = last.get(entry.name, (0, 0))
            # Of a store that was put back from a backup: it goes on with its numbers.
            begun = not seq and owner_of(entry.name)[0] is NameKind.LETTERS
            if entry.last_lsn != at and entry.seq != seq + 1 and not begun:
                self.broken("named", f"LSN {entry.lsn} is {entry.name} {entry.seq} behind {seq}")
            last[entry.name] = entry.seq, entry.last_lsn


def committed(rows: Iterable[Row]) -> dict[str, list[Delivered]]:
    """Return what the rows have committed, by tag, in its order."""
    found: dict[str, list[Delivered]] = {}
    pending: dict[int, list[tuple[Entry, tuple[str, ...]]]] = {}
    for row in rows:
        entry = read_row(row)
        decided: list[tuple[Entry, tuple[str, ...]]] = []
        if entry.kind is EntryKind.PENDING:
            pending.setdefault(entry.producer, []).append((entry, row.tags))
        elif entry.kind is EntryKind.COMMITTED:
            decided = [(entry, row.tags)]
        else:
            taken = _taken(pending, entry)
            decided = sorted(taken, key=lambda each: each[0].lsn)
            if entry.kind is EntryKind.ROLLBACK:
                decided = []
        for each, tags in decided:
            for tag in tags:
                found.setdefault(tag, []).append((each.message, entry.last_lsn))
    return found


def merged(found: Mapping[str, list[Delivered]], tags: Sequence[str]) -> list[Delivered]:
    """Return what some substreams have committed, as one: by commit, then by substream."""
    ordered = sorted(tags, key=lambda tag: int(tag.rpartition("/")[2]))
    every = [each for tag in ordered for each in found.get(tag, ())]
    return sorted(every, key=lambda delivered: delivered[1])


def _taken(
    pending: dict[int, list[tuple[Entry, tuple[str, ...]]]], marker: Entry
) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    for decision in marker.decisions:
        yield from pending.pop(decision.producer, ())
