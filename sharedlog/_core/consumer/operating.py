"""The operating of a consumer by people: pause, reset, and what is told of its shards.

Kept in the log, for the consumer NAME, beside what ``members`` keeps:

- ``consumer/NAME/reset/TAG``: from where the shard goes on, since an operator said so: an *epoch*,
  which only grows, and a position; without one its hold says it;
- ``consumer/NAME/told/TAG``: what failed there, for who looks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.asked import Asked, Rewind
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import CONSUMERS, PAUSED, Seen, look, shard_key, stopped_key
from sharedlog._core.consumer.names import done_key, hold_name
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence, condition_of
from sharedlog._core.holds import Start, hold_key
from sharedlog._core.holds import take as take_holds
from sharedlog._core.position import Position
from sharedlog._core.reading import verify
from sharedlog._core.steps import Get, Rule, Scan
from sharedlog._core.streams import tag_of
from sharedlog._core.whole import read_trimmed

# Shards of one commit: etcd takes few keys.
_PIECE = 16


class Told(NamedTuple):
    """Of a shard: attempts of the message that fails now, what it failed by; dead letters.

    ``failing_since_us``: since when, in microseconds since 1970; 0: nothing fails.
    """

    attempts: int = 0
    error: str = ""
    dead_letters: int = 0
    failing_since_us: int = 0


def pause(name: str) -> Rule[list[str]]:
    """Pause the consumer: its processes leave their shards, and take none; return the shards."""
    while True:
        seen = yield from look(name)
        tags = [tag for tag in tags_of(seen) if tag not in seen.stopped]
        try:
            for at in range(0, len(tags), _PIECE):
                keys = [stopped_key(name, tag) for tag in tags[at : at + _PIECE]]
                found = yield Get(tuple(keys))
                yield Commit(
                    tuple(Condition(key, found[key]) for key in keys),
                    tuple(Put(key, PAUSED) for key in keys),
                )
        except Refused:
            continue
        return tags


def reset(
    name: str, starts: Mapping[str, Start], incarnation: str, now_us: int, retention_us: int
) -> Rule[int]:
    """Have shards go on elsewhere, under a new epoch, which is returned (T6).

    Raises ``InvalidRequest`` if a process has one of them, ``LogForked``, and ``TrimmedLog``.
    """
    kept = {done_key(name, tag) for tag in starts}
    if any((yield Get(tuple(kept))).values()):
        raise InvalidRequest(
            f"the state of the consumer {name!r} is in the log: it cannot be done twice. Give it "
            "another name, which begins with an empty state"
        )
    trimmed = yield from read_trimmed()
    for start in starts.values():
        if isinstance(start, Position):
            start.check_incarnation(incarnation)
            trimmed.check(start.lsn)
            yield from verify(start)
        elif isinstance(start, int):
            trimmed.check(start)
    seen = yield from look(name)
    found: Mapping[str, bytes] = yield Scan(_reset_key(name))
    epoch = 1 + max((_read(each)[0] for each in found.values()), default=0)
    tags = sorted(starts)
    for at in range(0, len(tags), _PIECE):
        piece = tags[at : at + _PIECE]
        held = {hold_key(hold_name(name), tag): tag for tag in piece}
        owners = {shard_key(name, tag): seen.owners.get(tag) for tag in piece}
        if running := [tag for tag in piece if tag in seen.owners and not seen.dead(tag)]:
            raise _runs(name, running)
        try:
            yield Commit(
                tuple(
                    Condition(key, None if owner is None else owner.encode())
                    for key, owner in owners.items()
                ),
                (
                    *(Put(_reset_key(name, tag), _written(epoch, starts[tag])) for tag in piece),
                    *(Put(key, None) for key in held),
                ),
            )
        except Refused as refused:
            raise _runs(name, piece) from refused
        mine = {tag: starts[tag] for tag in piece}
        yield from take_holds(hold_name(name), mine, incarnation, now_us, retention_us)
    return epoch


def rewind(name: str, tag: str, fence: Fence, checkpoint: Checkpoint) -> Asked[Checkpoint]:
    """Carry out a reset that a shard's store has not, once what it owes was appended."""
    key = _reset_key(name, tag)
    value = (yield Get((key,)))[key]
    epoch, position = (0, None) if value is None else _read(value)
    if epoch <= checkpoint.epoch:
        return checkpoint
    yield Rewind(tag, fence.number, epoch, position)
    return Checkpoint(fence.number, position, checkpoint.seq, epoch=epoch)


def tell(name: str, tag: str, fence: Fence, told: Told) -> Rule[None]:
    """Note what is told of a shard, for who looks; not by who has it no more."""
    try:
        yield Commit(
            (condition_of(fence),), (Put(_told_key(name, tag), json.dumps(told).encode()),)
        )
    except Refused:
        return


def told_of(name: str) -> Rule[dict[str, Told]]:
    """Return what is told of a consumer's shards."""
    found: Mapping[str, bytes] = yield Scan(_told_key(name))
    return {key.removeprefix(_told_key(name)): Told(*json.loads(row)) for key, row in found.items()}


def tags_of(seen: Seen) -> list[str]:
    """Return a consumer's shards, by the streams that it follows."""
    streams = (seen.streams or b"").decode()
    found = [each.rpartition("/") for each in streams.split(",") if each]
    return [tag_of(stream, at) for stream, _, count in found for at in range(int(count))]


def _reset_key(name: str, tag: str = "") -> str:
    return f"{CONSUMERS}{name}/reset/{tag}"


def _told_key(name: str, tag: str = "") -> str:
    return f"{CONSUMERS}{name}/told/{tag}"


def _written(epoch: int, start: Start) -> bytes:
    return f"{epoch} {start if isinstance(start, Position) else ''}".encode()


def _read(value: bytes) -> tuple[int, Position | None]:
    epoch, _, position = value.decode().partition(" ")
    return int(epoch), Position.parse(position) if position else None


def _runs(name: str, tags: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"processes of the consumer {name!r} have {', '.join(tags)}: pause or stop it first"
    )
