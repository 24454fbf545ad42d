"""Oracle: what each target was called with, held against what was committed.

It reads the rows of the log and of the targets' stores by itself: by no rule of the player's.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from chaos.sim.log.onlooker import Asked
from chaos.sim.player.cast import LOG, PLAYER, STREAMS, PlayerCast
from chaos.sim.player.operator import Operator
from chaos.sim.player.store import Effect
from chaos.sim.player.target import SimulatedTarget
from chaos.sim.player.told import (
    Letters,
    Message,
    dead_letters,
    messages,
    place_of,
    places,
    skipped_for_operators,
)
from sharedlog._core.commit import Commit
from sharedlog._core.target_steps import HandlerKind
from sharedlog._player.declared import Target
from sharedlog.v1 import target_pb2 as pb

__all__ = ["Judge"]

# Within which everybody is called whom another one's hanging must not delay.
_LATE_S = 3.0
# What a player stops for without having been deceived: its messages.
_OF_MESSAGES = ("FAILED", "REFUSED", "UNKNOWN")
# Rows that the one that leads writes, and what it holds.
_LED = re.compile(f"player/{PLAYER}/(told|store)/")
_DUTY = f"*player/{PLAYER}"
# Of what is kept of a hold, before its position.
_HOLD_BYTES = struct.calcsize(">B?QQQ")


class Judge:
    """Of one run. ``hung``: a target that hangs, while nothing else goes wrong."""

    def __init__(
        self,
        cast: PlayerCast,
        targets: Sequence[SimulatedTarget],
        declared: Sequence[Target],
        operator: Operator,
        hung: int | None,
    ) -> None:
        self._cast = cast
        self._targets = {each.setup.name: each for each in targets}
        self._declared = {each.name: each for each in declared}
        self._operator = operator
        self._hung = hung
        self._counts: Counter[str] = Counter()
        self._known: tuple[int, Mapping[str, list[Message]], Letters] = (0, {}, Letters())
        cast.server.watchers.append(self._see)

    def outcomes(self) -> dict[str, int]:
        """Count what targets did."""
        return dict(self._counts)

    def all_delivered(self) -> bool:
        """Whether each message was called, or given up, at each target."""
        found, letters = self._read()
        return all(
            self._through(each, tag, found, letters)
            for each in self._targets.values()
            for tag in _tags(each)
        )

    def _read(self) -> tuple[Mapping[str, list[Message]], Letters]:
        """Return what the log has, messages and dead letters; read again where it has grown."""
        rows = self._cast.server.seen.rows
        if len(rows) != self._known[0]:
            self._known = len(rows), messages(rows), dead_letters(rows)
        return self._known[1:]

    def tell_what_is_left(self) -> None:
        """Note what never comes to its end."""
        found, letters = self._read()
        for each in self._targets.values():
            for tag in _tags(each):
                if not self._through(each, tag, found, letters):
                    self._broken("stuck", f"{each.setup.name}, {tag}")

    def judge(self) -> None:
        """Find what is wrong."""
        seen, oracle = self._cast.server.seen, self._cast.oracle
        oracle.judge(seen.rows, seen.raised, seen.retired)
        oracle.problems.extend(seen.problems)
        found, letters = self._read()
        self._counts["dead letters"] += sum(map(len, letters.values()))
        for each in self._targets.values():
            for tag in _tags(each):
                self._judge(each, tag, found, letters)
            self._judge_deaths(each)
        self._judge_connections()
        self._judge_stores()
        self._judge_orders()
        for name, why in sorted(self._operator.seen):
            self._counts[f"stopped {why}"] += 1
            # Where a replay is to begin was trimmed before anybody held it.
            replayed = why == "TRIMMED" and self._number(self._targets[name]) > 0
            if not (why in _OF_MESSAGES or replayed or self._targets[name].restores):
                self._broken("stopped", f"{name} for {why}, and no fault touched its store")

    def _judge_deaths(self, target: SimulatedTarget) -> None:
        """What kills is found by halves, and what is beside it runs again for these deaths only."""
        if not target.kills:
            return
        tried = {
            body: times
            for (index, body), times in self._cast.tries.items()
            if index == target.index
        }
        killers = [body for body in tried if target.is_killer(body)]
        tries = self._declared[target.setup.name].tries or 0
        halves = int(math.log2(len(tried)))
        deaths, most = sum(map(tried.__getitem__, killers)), len(killers) * (halves + tries)
        self._counts["deaths"] += deaths
        if deaths > most:
            self._broken("deaths", f"{target.setup.name} died {deaths} times, not {most} at most")
        for body in sorted(tried.keys() - set(killers)):
            if tried[body] > len(killers) * halves + 1:
                self._broken("deaths", f"{target.setup.name} ran {body!r} {tried[body]} times")
                return

    def _judge_stores(self) -> None:
        """No handler runs for an index in another store than that begun in, or adopted."""
        adopted = self._cast.adopted
        for name, target in self._targets.items():
            for number, ran in target.store.ran.items():
                others = [each for each in ran if (name, number, each) not in adopted]
                if len(others) > 1:
                    self._broken("store", f"{name}, index {number}: it is in {others}")

    def _judge_orders(self) -> None:
        """What an operator had skipped is a dead letter of the index that it was said of."""
        for told in skipped_for_operators(self._cast.server.seen.rows):
            if told not in self._operator.skips:
                self._broken("letters", f"no operator had this skipped: {told}")

    def _judge_connections(self) -> None:
        """On one connection nothing is left out, where one stream takes over from the other."""
        known: dict[str, dict[tuple[int, int], int]] = {}
        for tag, found in places(self._cast.server.seen.rows).items():
            known[tag] = {place: at for at, place in enumerate(found)}
        for (_, target, term), sent in self._cast.sent.items():
            last: dict[str, int] = {}
            for tag, lsn, ordinal in sent:
                at = known[tag].get((lsn, ordinal))
                if at is None:
                    # An empty delivery: it moves an index to where no message is.
                    continue
                if at > last.get(tag, at) + 1:
                    self._broken(
                        "left out",
                        f"target {target}, connection {term}: {lsn}.{ordinal} of {tag} follows "
                        f"what is {at - last[tag]} before it",
                    )
                    return
                last[tag] = at

    # One substream of a target.

    def _through(
        self,
        target: SimulatedTarget,
        tag: str,
        found: Mapping[str, list[Message]],
        letters: Letters,
    ) -> bool:
        number = self._number(target)
        done = {each.body for each in self._effects(target, number, tag)}
        done.update(letters.get((target.setup.name, number, tag), ()))
        wanted = self._wanted(target, number, tag, found)
        return all(each.body in done for each in wanted)

    def _judge(
        self,
        target: SimulatedTarget,
        tag: str,
        found: Mapping[str, list[Message]],
        letters: Letters,
    ) -> None:
        name, number, setup = target.setup.name, self._number(target), target.setup
        wanted = [each.body for each in self._wanted(target, number, tag, found)]
        effects = self._effects(target, number, tag)
        did = [each.body for each in effects]
        given_up = letters.get((name, number, tag), [])
        self._counts["effects"] += len(did)
        where = f"{name}, {tag}, index {number}"
        known, gone = set(did), set(given_up)
        if missing := sorted(set(wanted) - known - gone):
            self._broken("missing", f"{where}: {missing[:3]} of {len(missing)}")
        for body in sorted(known - set(wanted)):
            self._broken("labels", f"{where}: {body!r} was called, and is not committed")
        once = list(dict.fromkeys(did))
        if once != [each for each in wanted if each in known] and known <= set(wanted):
            self._broken("order", f"{where}: {_first_difference(once, wanted, known)}")
        again = setup.kind is HandlerKind.IDEMPOTENT or (
            setup.kind is HandlerKind.PLAIN and self._declared[name].unknown == "again"
        )
        if len(once) < len(did) and not again:
            twice = sorted(body for body, times in Counter(did).items() if times > 1)
            self._broken("doubled", f"{where}: {twice}")
        if target.restores:
            # What was given up before is called again, or given up again.
            return
        if len(gone) < len(given_up):
            self._broken("letters", f"{where}: {Counter(given_up).most_common(3)}")
        if setup.kind is HandlerKind.ATOMIC and known & gone:
            self._broken("letters", f"{where}: {sorted(known & gone)} were called, too")
        late = [each for each in target.store.late if (each.number, each.tag) == (number, tag)]
        if called := sorted({each.body for each in late} - gone):
            self._broken("letters", f"{where}: {called} were passed over, and are none")
        skips = _index(target, number, tag).skips
        if skips != len(given_up):
            self._broken("letters", f"{where}: {skips} were skipped, {len(given_up)} are told")
        if self._hung is not None and self._hung != target.index:
            self._judge_delay(where, tag, found, {each.body: each.at for each in effects})

    def _judge_delay(
        self,
        where: str,
        tag: str,
        found: Mapping[str, list[Message]],
        times: Mapping[bytes, float],
    ) -> None:
        seen = self._cast.server.seen
        for each in found.get(tag, ()):
            delay_s = times.get(each.body, 0.0) - seen.asked[each.lsn - 1]
            if delay_s > _LATE_S:
                self._broken("delayed", f"{where}: {each.body!r} by {delay_s:.3f} s")
                return

    def _wanted(
        self,
        target: SimulatedTarget,
        number: int,
        tag: str,
        found: Mapping[str, list[Message]],
    ) -> list[Message]:
        first = self._operator.firsts.get((target.setup.name, number), 1)
        return [each for each in found.get(tag, ()) if each.lsn >= first]

    def _effects(self, target: SimulatedTarget, number: int, tag: str) -> list[Effect]:
        there = target.store.held.effects
        return [each for each in there if (each.number, each.tag) == (number, tag)]

    def _number(self, target: SimulatedTarget) -> int:
        numbers = [number for name, number in self._operator.firsts if name == target.setup.name]
        return max(numbers, default=0)

    def _see(self, asked: Asked, commit: Commit) -> None:
        """Hold what a player takes for acknowledged against what is durable at the target."""
        self._see_who(asked, commit)
        for put in commit.puts:
            kind, _, rest = put.key.partition("/")
            name, _, tag = rest.partition("/")
            parts = name.split(":")
            if kind != "hold" or parts[:2] != ["@player", PLAYER] or put.value is None:
                continue
            target, number = self._targets[parts[2]], int(parts[3])
            position = put.value[_HOLD_BYTES:].decode().partition("@")[0]
            if not position or target.restores:
                continue
            at = _index(target, number, tag).at
            lsn, ordinal = place_of(position)
            if (lsn, ordinal) > (at.lsn, at.ordinal):
                self._broken(
                    "acknowledged",
                    f"{asked.process.name} holds {name} at {position} of {tag}, which is at "
                    f"{at.lsn}.{at.ordinal}",
                )

    def _see_who(self, asked: Asked, commit: Commit) -> None:
        """Only the last to take the duty tells, binds and appends dead letters."""
        lives = [who for process, who in self._cast.lives if process is asked.process]
        if not lives or not (commit.entries or any(_LED.match(put.key) for put in commit.puts)):
            return
        seen = self._cast.server.seen
        number = seen.raised[_DUTY][-1][0]
        if seen.holders.get((_DUTY, number)) != lives[0]:
            self._broken("duty", f"{asked.process.name} acts as the one that leads, and is not")

    def _broken(self, rule: str, text: str) -> None:
        self._cast.oracle.broken(rule, text)


def _tags(target: SimulatedTarget) -> list[str]:
    return [f"{name}/{number}" for name in target.setup.streams for number in range(STREAMS[name])]


def _index(target: SimulatedTarget, number: int, tag: str) -> pb.KeptIndex:
    row = target.store.held.rows.get(f"index/{number}/{tag}@{LOG}", b"")
    return pb.KeptIndex.FromString(row)


def _first_difference(once: list[bytes], wanted: list[bytes], known: set[bytes]) -> str:
    expected = [each for each in wanted if each in known]
    at = next(at for at, pair in enumerate(zip(once, expected, strict=True)) if pair[0] != pair[1])
    return f"{once[at]!r} as number {at + 1}, not {expected[at]!r}"
