"""The beginning of a connection: where a target is, held against the log (DESIGN-LOG §15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sharedlog._core.holds import Hold
from sharedlog._core.player.deadletters import Whose, count_of
from sharedlog._core.player.failing import Suspended
from sharedlog._core.player.indexes import Begins, KnownIndex, check_store, held_against
from sharedlog._core.player.stores import bind, stores_of
from sharedlog._core.position import Position
from sharedlog._player import letters
from sharedlog._player.link import Link
from sharedlog._player.stage import Stage
from sharedlog._player.wire import Garbage, beats_of, indexes_of
from sharedlog._wire.conversions import place_of
from sharedlog._wire.methods import MOST_ASKED
from sharedlog.v1 import target_pb2

# What of a message to a target is no delivery.
_ROOM = 4 << 10


class Here(NamedTuple):
    """Where a target says that it is.

    ``store``: the id of its store; ``most_bytes``: of one message to it, 0 where it says nothing.
    ``process``: which one answers, "" where it does not say; ``beats``: of those that were asked
    about, 0 where one has ended.
    """

    store: str
    indexes: Sequence[KnownIndex]
    streams: bool
    most_bytes: int
    process: str = ""
    beats: Mapping[str, int] = {}

    @property
    def at_once(self) -> int:
        """The most bytes of deliveries that one message to it may have; 0: any number."""
        return max(1, self.most_bytes - _ROOM) if self.most_bytes else 0


async def ask(
    stage: Stage,
    link: Link,
    feed: target_pb2.Feed,
    tags: Sequence[str],
    processes: Sequence[str] = (),
    passed_over: Mapping[str, Position] | None = None,
) -> Here:
    """Ask a target where it is; raises ``LogError``, and ``Garbage`` for what is no answer.

    ``processes``: those to check for whether they have ended. ``passed_over``: messages whose
    runs must be revoked, by substream.
    """
    here: Here | None = None
    for first in range(0, len(tags), MOST_ASKED):
        some = tags[first : first + MOST_ASKED]
        reply = await link.connect(
            target_pb2.ConnectRequest(
                feed=feed,
                incarnation=stage.place.incarnation,
                tags=some,
                player=stage.player,
                processes=processes,
                passed_over=[
                    target_pb2.PassedOver(tag=tag, place=place_of(place))
                    for tag, place in (passed_over or {}).items()
                    if tag in some
                ],
            )
        )
        if here is not None and reply.store != here.store:
            raise Garbage(f"two stores answer: {here.store} and {reply.store}")
        known = () if here is None else here.indexes
        found = [*known, *indexes_of(reply, some, stage.place.incarnation)]
        beats = beats_of(reply, processes)
        here = Here(reply.store, found, reply.streams, reply.most_bytes, reply.process, beats)
    if here is None:
        raise AssertionError("a target has substreams")
    return here


async def held(
    stage: Stage, name: str, number: int, here: Here, holds: Mapping[str, Hold]
) -> Begins | Suspended:
    """Return where it goes on, or why it does not: by its store, the log and its holds (P6)."""
    store, incarnation = here.store, stage.place.incarnation
    known = (await stage.run(lambda: stores_of(stage.player, name))).ids.get(number)
    other = check_store(known, store)
    if other is not None:
        return other
    found = await stage.run(lambda: held_against(here.indexes, holds, incarnation))
    if known is None and store and isinstance(found, Begins):
        rule = partial(bind, stage.player, name, number, store, stage.fence)
        return check_store(await stage.run(rule), store) or found
    return found


async def bury(stage: Stage, name: str, number: int, here: Here) -> list[tuple[str, int]]:
    """Have what it skipped among the dead letters, before anything else (P7).

    Returns through which number of each substream.
    """
    whose = Whose(stage.player, name, here.store, stage.log_name, number)
    for each in here.indexes:
        for one in each.skipped:
            await letters.bury_one(stage, whose, each.tag, one)
    return [(each.tag, each.skipped[-1].number) for each in here.indexes if each.skipped]


async def buried(stage: Stage, name: str, number: int, here: Here) -> int:
    """Return how many messages its index has given up."""
    whose = Whose(stage.player, name, here.store, stage.log_name, number)
    return await stage.run(lambda: count_of(whose, [each.tag for each in here.indexes]))
