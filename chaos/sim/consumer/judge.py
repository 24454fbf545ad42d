"""Oracle: the user's tables equal one run over what was committed.

It reads the rows of the log and of the tables by itself: by no rule of the consumer's.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.counting import Counting
from chaos.sim.consumer.database import Effect
from chaos.sim.consumer.handler import output_of
from chaos.sim.consumer.names import CONSUMER, LETTERS, OUTPUTS, TAGS
from chaos.sim.consumer.redis_store import RedisDatabase
from chaos.sim.consumer.stage import chained, read_first
from chaos.sim.log.onlooker import Asked
from chaos.sim.log.oracle import committed
from sharedlog._core.commit import Commit
from sharedlog._core.consumer.names import hold_name, producer_name
from sharedlog._core.entry import Row, read_row
from sharedlog._core.holds import hold_key
from sharedlog.v1 import sharedlog_pb2

__all__ = ["Judge"]

# What a message may be given up for, as its dead letter says: not for a store that was away.
_REASONS = (
    "ValueError: try ",
    "CallForgotten: ",
    "CallMismatch: ",
    "KeyError: ",
    "RPUSH text: ",
    "the process ended while it ran",
)
# Of what is kept of a hold, before its position.
_HOLD_BYTES = struct.calcsize(">B?QQQ")


class _Output(NamedTuple):
    tag: str
    text: str
    lsn: int


class _Read(NamedTuple):
    """What the log has: messages, by substream; outputs, and dead letters and why, by shard."""

    messages: Mapping[str, list[str]]
    outputs: Mapping[str, list[_Output]]
    letters: Mapping[str, list[str]]
    reasons: Sequence[tuple[str, str]]


class Judge:
    """Of one run."""

    def __init__(self, cast: ConsumerCast) -> None:
        self._cast = cast
        self._known: tuple[int, _Read] = (-1, _Read({}, {}, {}, ()))
        self._counts: Counter[str] = Counter()
        cast.server.watchers.append(self._see)
        self._counting = Counting(cast)

    def outcomes(self) -> dict[str, int]:
        """Count what the consumer did."""
        return dict(self._counts) | {f"ended {k}": v for k, v in self._cast.refusals.items()}

    def all_done(self) -> bool:
        """Whether each message has its effects, or is a dead letter, and all outputs are there."""
        return self._cast.lost or not any(self._left(tag) for tag in TAGS)

    def tell_what_is_left(self) -> None:
        """Note what never comes to its end."""
        for tag in TAGS if not self._cast.lost else ():
            if left := self._left(tag):
                self._broken("stuck", f"{tag}: {left}")

    def judge(self) -> None:
        """Find what is wrong."""
        seen, oracle = self._cast.server.seen, self._cast.oracle
        oracle.judge(seen.rows, seen.raised, seen.retired)
        oracle.problems.extend(seen.problems)
        if self._cast.forgot:
            # A name that was forgotten begins elsewhere.
            kept = [each for each in oracle.problems if not each.startswith("named: ")]
            oracle.problems[:] = kept
        if self._cast.lost:
            return
        for tag in TAGS:
            self._judge(tag)
        if isinstance(self._cast.database, RedisDatabase):
            self._judge_total(self._cast.database)
        for body, why in self._read().reasons:
            if not why.startswith(_REASONS):
                self._broken("letters", f"{body!r} was given up for {why!r}")
        for key in self._cast.server.log.keys:
            if key.startswith("span/"):
                self._broken("an invariant", f"{key} is open, and all is done")
        service = self._cast.service
        for what, runs in sorted(service.runs.items()):
            if runs > 1:
                self._broken("called", f"{what} ran {runs} times")
        self._counts["calls"] += len(service.runs)

    def _judge_total(self, database: RedisDatabase) -> None:
        """Hold what all shards count together, and read first, against their effects."""
        read = [tag for tag in TAGS if read_first("redis", tag)]
        wanted = sum(len(database.effects(tag)) for tag in read)
        if database.total() != wanted:
            self._broken("watched", f"{database.total()} are counted, of {wanted}")

    def _left(self, tag: str) -> str:
        read = self._read()
        done = {each.body for each in self._cast.effects(tag)}
        done.update(read.letters.get(tag, ()))
        missing = [each for each in read.messages.get(tag, ()) if each not in done]
        if missing:
            return f"{missing[0]} and {len(missing) - 1} more are not done"
        there = {each.text for each in read.outputs.get(tag, ())}
        unsaid = [each for each in self._said(self._cast.effects(tag)) if each not in there]
        return f"{unsaid[0]!r} is not published" if unsaid else ""

    def _judge(self, tag: str) -> None:
        read, cast = self._read(), self._cast
        given_up = read.letters.get(tag, [])
        gone = set(given_up)
        if cast.forgot or cast.redone:
            # What was given up before the backup, or behind it, is done again.
            gone -= {each.body for each in cast.effects(tag)}
        wanted = [each for each in read.messages.get(tag, ()) if each not in gone]
        effects = cast.effects(tag)
        did = [each.body for each in effects]
        self._counts["effects"] += len(did)
        self._counts["dead letters"] += len(given_up)
        if len(gone) < len(given_up) and not (cast.forgot or cast.redone):
            self._broken("letters", f"{tag}: {Counter(given_up).most_common(2)}")
        for body in gone:
            if body not in read.messages.get(tag, ()):
                self._broken("letters", f"{tag}: {body!r} was never committed there")
        if did != wanted:
            self._broken("effects", f"{tag}: {_difference(did, wanted)}")
            return
        # One run, over what was committed.
        chain = ""
        for each in effects:
            numbers = range(cast.plan(each.body).calls)
            answers = [self._answer(f"{each.body}#{at}") for at in numbers]
            if "" in answers:
                self._broken("called", f"{tag}: {each.body} is done, and was not answered")
            before = chain if read_first(cast.setup.store, tag) else ""
            chain = chained(before, each.body, answers)
            if (each.chain, each.answers) != (chain, answers):
                self._broken("effects", f"{tag}: {each}, in one run {chain} {answers}")
                return
        self._judge_outputs(tag, effects, read.outputs.get(tag, []))

    def _answer(self, what: str) -> str:
        """Return what a call was answered first; of one that strays, of the sort that was sent."""
        answers = self._cast.service.answers
        return answers.get(what) or answers.get(f"{what}!", "")

    def _judge_outputs(
        self, tag: str, effects: Sequence[Effect], outputs: Sequence[_Output]
    ) -> None:
        wanted = self._said(effects)
        ticks = [f"tick {tag} {at + 1}" for at in range(self._cast.ticks(tag))]
        there = [each.text for each in outputs if not each.text.startswith("tick ")]
        ticked = [each.text for each in outputs if each.text.startswith("tick ")]
        self._counts["outputs"] += len(there)
        if self._cast.forgot or self._cast.redone:
            # What was published since the backup, or before the reset, is there twice.
            if missing := sorted(set(wanted) - set(there)):
                self._broken("outputs", f"{tag}: {missing[0]!r} is not there")
            return
        # They go on to the end: what the last one published may be on its way.
        if ticked not in (ticks, ticks[:-1]):
            self._broken("ticks", f"{tag}: {_difference(ticked, ticks)}")
        if sorted(there) != sorted(wanted):
            self._broken("outputs", f"{tag}: {_difference(sorted(there), sorted(wanted))}")
            return
        places = {text: at for at, text in enumerate(wanted)}
        last: dict[str, int] = {}
        whole: dict[str, set[int]] = {}
        for each in outputs:
            if each.text not in places:
                continue
            at = places[each.text]
            if at < last.get(each.tag, -1):
                self._broken("order", f"{tag}: {each.text!r} stands behind a later one")
                return
            last[each.tag] = at
            whole.setdefault(each.text.partition(" ")[0], set()).add(each.lsn)
        for body, lsns in whole.items():
            if len(lsns) > 1:
                self._broken("torn", f"{tag}: what {body} published is at {sorted(lsns)}")

    def _said(self, effects: Sequence[Effect]) -> list[str]:
        plan = self._cast.plan
        return [
            output_of(each.body, number, each.chain)
            for each in effects
            for number in range(plan(each.body).outputs)
        ]

    def _read(self) -> _Read:
        """Return what the log has; read again where it has grown."""
        rows = self._cast.server.seen.rows
        if len(rows) != self._known[0]:
            self._known = len(rows), _read(rows)
        return self._known[1]

    def _see(self, asked: Asked, commit: Commit) -> None:
        """Hold what is in the log by now against what the store has committed."""
        self._see_holds(asked, commit)
        if self._cast.setup.store == "log" or self._cast.went_back:
            return
        for new in commit.entries[-1:]:
            entry = read_row(Row(1, new.body, new.tags, 0))
            outputs = producer_name(CONSUMER, "")
            tag = entry.name.removeprefix(outputs)
            if entry.name.startswith(outputs) and entry.seq > self._cast.database.seq(tag):
                self._broken(
                    "early", f"{asked.process.name} publishes {tag} {entry.seq}: not committed"
                )

    def _see_holds(self, asked: Asked, commit: Commit) -> None:
        """T7: what a hold says is done has its effects."""
        prefix = hold_key(hold_name(CONSUMER), "")
        for put in commit.puts:
            tag = put.key.removeprefix(prefix)
            if put.value is None or tag not in TAGS or not put.key.startswith(prefix):
                continue
            position = put.value[_HOLD_BYTES:].decode()
            # One that has not moved names the log's incarnation (`sharedlog/_core/holds.py`).
            place = _place("" if position.startswith("@") else position)
            if place > _place(self._cast.position(tag, asked.at)):
                self._broken("ahead", f"{asked.process.name} holds {tag} at {place}: not done")

    def _broken(self, rule: str, text: str) -> None:
        self._cast.oracle.broken(rule, text)


def _read(rows: Sequence[Row]) -> _Read:
    found = committed(rows)
    messages = {
        tag: [_body(envelope) for envelope, _ in each] for tag, each in found.items() if tag in TAGS
    }
    shards = {body: tag for tag, bodies in messages.items() for body in bodies}
    outputs: dict[str, list[_Output]] = {}
    letters: dict[str, list[str]] = {}
    reasons = []
    every = [
        _Output(tag, _body(envelope), lsn)
        for tag, each in found.items()
        if tag.startswith(f"{OUTPUTS}/") and not tag.endswith("*")
        for envelope, lsn in each
    ]
    for each in every:
        words = each.text.split(" ")
        shard = words[1] if words[0] == "tick" else shards.get(words[0], "")
        outputs.setdefault(shard, []).append(each)
    for envelope, _ in found.get(f"{LETTERS}/0", ()):
        read = sharedlog_pb2.Envelope.FromString(envelope)
        body = read.body.decode()
        letters.setdefault(shards.get(body, ""), []).append(body)
        said = {each.name: each.value for each in read.headers}
        reasons.append((body, said["dead-letter-error"].decode()))
    return _Read(messages, outputs, letters, reasons)


def _place(position: str) -> tuple[int, int]:
    """Return LSN and ordinal of a position's text; of none, what is before all."""
    if not position:
        return (0, 0)
    lsn, ordinal = position.partition("/")[0].partition("-")[0].split(".")
    return int(lsn), int(ordinal)


def _body(envelope: bytes) -> str:
    return sharedlog_pb2.Envelope.FromString(envelope).body.decode()


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    for at, pair in enumerate(zip(found, wanted, strict=False)):
        if pair[0] != pair[1]:
            return f"{pair[0]!r} as number {at + 1}, not {pair[1]!r}"
    return f"{len(found)}, not {len(wanted)}: {(list(found) + list(wanted))[-1:]}"
