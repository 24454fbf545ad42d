"""The beginning of a course, where something happens while its target is asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from sharedlog._core.catalog import make_stream
from sharedlog._core.duty import Duty
from sharedlog._core.envelope import pack, unpack
from sharedlog._core.following import read_some
from sharedlog._core.incarnation import new_log
from sharedlog._core.named import all_names
from sharedlog._core.player.deadletters import Whose, bury_skipped
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._core.player.rows import Wish
from sharedlog._core.producers import NewMessage, append, grant
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._log.place import Place
from sharedlog._player.course import Course
from sharedlog._player.declared import Target
from sharedlog._player.link import Link
from sharedlog._player.outside import Outside
from sharedlog._player.stage import Stage
from sharedlog._player.watching import PlayerWatchers
from sharedlog.v1 import target_pb2 as pb

INCARNATION = "0123456789abcdef"


class _Here:
    """The log at hand: rules are carried out at once."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def run(self, rule: Callable[[], Any]) -> Any:
        return self._place.run(rule())

    async def once(self, rule: Any) -> Any:
        return self._place.run(rule)


class _Asked(Link):
    """A target that says where it is when it is let."""

    def __init__(self, replies: list[pb.ConnectReply]) -> None:
        self.requests: list[pb.ConnectRequest] = []
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self._replies = replies

    async def connect(self, request: pb.ConnectRequest) -> pb.ConnectReply:
        self.requests.append(request)
        self.asked.set()
        await self.answers.wait()
        self.answers.clear()
        return self._replies.pop(0)

    async def close(self) -> None:
        pass


def _stage(place: Place, link: Link) -> Stage:
    outside = Outside(lambda _: _Here(place), lambda _: link, lambda: 1, lambda: 0.5, b"", "here")  # type: ignore[arg-type,return-value]
    fence = place.run(Duty("player/player", b"12345678", 1.0).take(0.0))
    assert fence is not None
    watchers = PlayerWatchers("player", ())
    return Stage(
        place,
        outside,
        outside.log(1),
        "player",
        "log",
        "dead",
        fence,
        watchers,
        lambda: None,
        _tell,
    )


async def _tell(name: str) -> None:
    """Nobody reads it."""


def _log() -> Place:
    place = Place(
        MemoryEngine(MemoryLog(new_log(INCARNATION))), INCARNATION, 1.0, threading.Event()
    )
    place.run(make_stream("orders", 1))
    place.run(
        append(
            place.run(grant(b"t" * 16)), 1, [NewMessage(pack(b"m", None, None, 1), ("orders/0",))]
        )
    )
    return place


def _skipped(place: Place) -> pb.ConnectReply:
    """Index 0 has skipped the message, which is no dead letter yet."""
    checksum = _checksum(place)
    index = pb.Index(tag="orders/0", incarnation=INCARNATION, taken=1)
    for at in (index.at, index.skipped.add(number=1, reason="it fails", by="rule").place):
        at.lsn, at.ordinal, at.checksum, at.substream = 1, 0, checksum, 0
    return pb.ConnectReply(store="store", indexes=[index], streams=True)


def _checksum(place: Place) -> int:
    return place.run(read_some("orders/0", INCARNATION, 1, 1))[0].position.checksum


def test_a_replay_while_a_target_is_asked_is_of_its_own_index() -> None:
    """What an index skipped is a dead letter of that index, not of the one begun since (P7)."""

    async def scenario() -> tuple[list[int], list[str], bool]:
        place = _log()
        link = _Asked([_skipped(place), pb.ConnectReply()])
        course = Course(Target(name="t", address="x:1", streams=["orders"]), _stage(place, link))
        task = asyncio.ensure_future(course.run())
        await link.asked.wait()
        link.asked.clear()
        course.apply(Wish(number=1, first=1, resumed=1))
        link.answers.set()
        await link.asked.wait()
        names = [each.name for each in place.run(all_names())]
        stopped = course.suspended is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [each.feed.number for each in link.requests], names, stopped

    numbers, names, stopped = asyncio.run(scenario())
    assert numbers == [0, 1]
    assert names == ["@deadletters:store/log/0/orders/0"]
    assert not stopped


def test_a_skip_that_is_not_confirmed_outlives_its_message() -> None:
    """What was buried with its message is not buried again without it, and stops nobody (P7)."""
    place = _log()
    read = place.run(read_some("orders/0", INCARNATION, 1, 1))[0]
    fence = place.run(Duty("player/player", b"12345678", 1.0).take(0.0))
    assert fence is not None
    whose = Whose("player", "t", "store", "log", 0)
    first, second = (Unconfirmed(read.position, number, "why", "ann", 1) for number in (1, 2))
    place.run(bury_skipped("dead", whose, "orders/0", first, fence, None))
    place.engine.remove(1)
    for each in (first, second, second):
        place.run(bury_skipped("dead", whose, "orders/0", each, fence, None))
    letters = [place.run(read_some(f"dead/{at}", INCARNATION, 2, 10)) for at in range(8)]
    bodies = [unpack(each.envelope).body for found in letters for each in found]
    assert sorted(map(len, bodies)) == [0, len(read.envelope)]


def test_a_skip_is_one_dead_letter_whichever_player_makes_it() -> None:
    """Of two that play one target, or of one that was renamed, none stops (P7)."""
    place = _log()
    read = place.run(read_some("orders/0", INCARNATION, 1, 1))[0]
    skipped = Unconfirmed(read.position, 1, "why", "ann", 1)
    for player, target in (("one", "shop"), ("two", "other")):
        fence = place.run(Duty(f"player/{player}", b"12345678", 1.0).take(0.0))
        assert fence is not None
        whose = Whose(player, target, "store", "log", 0)
        place.run(bury_skipped("dead", whose, "orders/0", skipped, fence, None))
    letters = [place.run(read_some(f"dead/{at}", INCARNATION, 1, 10)) for at in range(8)]
    assert sum(map(len, letters)) == 1
