"""The members of a consumer: processes that share its shards, by leases (DESIGN-LOG §14, T1).

Kept in the log, for the consumer NAME:

- ``consumer/NAME/member/WHO``: a process that is there, for a term by the engine's clock;
- ``consumer/NAME/shard/TAG``: which of them has the shard of that substream;
- ``consumer/NAME/stopped/TAG``: why it is stopped; ``consumer/NAME/streams``: what it follows.

A process that takes a shard raises its fence in the same step. This is refused unless the shard is
free, or its owner is no longer there. The term gives no safety, it only says when to take over: the
fence refuses what the former owner still does.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.names import shard_fence
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence, condition_of, fence_key, number_of
from sharedlog._core.steps import Get, Rule, Scan

CONSUMERS = "consumer/"
# Kept in place of why a shard is stopped, once an operator lets it go on; and while it is paused.
_RESUMED = b""
PAUSED = b"paused by an operator"
# Of a process whose handlers run for long: others take over after it at the latest.
LONGEST_LEASE_S = 5.0


class Seen(NamedTuple):
    """A consumer as one moment has it.

    ``members``: what each says of itself; ``owners``: of shards; ``stopped``: why shards are;
    ``resumed``: those that an operator lets go on; ``streams``: None if it never ran.
    """

    members: Mapping[str, bytes]
    owners: Mapping[str, str]
    stopped: Mapping[str, str]
    resumed: Collection[str]
    streams: bytes | None

    def dead(self, tag: str) -> bool:
        """Whether a shard is that of a process which is no longer there."""
        return tag in self.owners and self.owners[tag] not in self.members


class MemberTerm(NamedTuple):
    """What a process says of itself in a consumer, for a term; ``streams``: what that follows."""

    name: str
    who: str
    says: bytes
    streams: bytes
    term_s: float

    @property
    def key(self) -> str:
        """Return the key of its membership."""
        return _key(self.name, "member", self.who)

    def put(self) -> Put:
        """Have it be one for a term from now."""
        return Put(self.key, self.says, term_s=self.term_s)


class Plan(NamedTuple):
    """What a member does now: shards to take, to leave, and those that it has lost."""

    take: list[str]
    leave: list[str]
    lost: list[str]


class Gone(enum.IntEnum):
    """What became of the process that had a shard before."""

    # It left it, or no process had it.
    LEFT = 0
    # It has ended, as is proved.
    DIED = 1
    # Its lease is over, and nothing proves that it has ended.
    TAKEN = 2


class ShardLease(NamedTuple):
    """A shard that was taken. ``before``: who had it, and did not leave it; else empty."""

    fence: Fence
    before: str


def _key(name: str, kind: str, what: str = "") -> str:
    return f"{CONSUMERS}{name}/{kind}/{what}"


def stopped_key(name: str, tag: str) -> str:
    """Return the key of why a shard is stopped."""
    return _key(name, "stopped", tag)


def shard_key(name: str, tag: str) -> str:
    """Return the key of who has a shard."""
    return _key(name, "shard", tag)


def _streams_key(name: str) -> str:
    return f"{CONSUMERS}{name}/streams"


def term_s(lease_s: float, longest_run_s: float) -> float:
    """Return for how long a process says that it is there, by its handlers' longest run of late.

    One that holds the interpreter says nothing while it runs.
    """
    return max(lease_s, min(LONGEST_LEASE_S, 2 * longest_run_s))


def look(name: str) -> Rule[Seen]:
    """Return a consumer's members and shards."""
    found: Mapping[str, bytes] = yield Scan(f"{CONSUMERS}{name}/")

    def of(kind: str) -> dict[str, bytes]:
        prefix = _key(name, kind)
        return {
            key.removeprefix(prefix): value
            for key, value in found.items()
            if key.startswith(prefix)
        }

    stopped = of("stopped")
    return Seen(
        of("member"),
        {tag: who.decode() for tag, who in of("shard").items()},
        {tag: why.decode() for tag, why in stopped.items() if why != _RESUMED},
        {tag for tag, why in stopped.items() if why == _RESUMED},
        found.get(_streams_key(name)),
    )


def check_follows(name: str, stream: str) -> Rule[None]:
    """Raise ``InvalidRequest`` if a consumer is known, and follows other streams."""
    seen = yield from look(name)
    if seen.streams is None:
        return
    if stream not in {each.rpartition("/")[0] for each in seen.streams.decode().split(",")}:
        raise InvalidRequest(
            f"the consumer {name!r} follows {_told(seen.streams)}, and not {stream!r}"
        )


def all_consumers() -> Rule[list[str]]:
    """Return the names of the log's consumers."""
    found = yield Scan(CONSUMERS)
    return sorted({key.removeprefix(CONSUMERS).partition("/")[0] for key in found})


def join(member: MemberTerm) -> Rule[None]:
    """Become a member, for a term. Raises ``InvalidRequest`` if it runs and follows others."""
    name, who, _, streams, _ = member
    while True:
        seen = yield from look(name)
        if seen.streams not in (None, streams) and set(seen.members) - {who}:
            raise InvalidRequest(
                f"the consumer {name!r} runs, and follows {_told(seen.streams)}, not "
                f"{_told(streams)}: stop it first, or use another name"
            )
        try:
            yield Commit(
                (Condition(_streams_key(name), seen.streams),),
                (Put(_streams_key(name), streams), member.put()),
            )
        except Refused:
            continue
        return


def renew(member: MemberTerm) -> Rule[None]:
    """Stay a member for another term; raises ``InvalidRequest`` if the consumer is another."""
    name, _, _, streams, _ = member
    try:
        yield Commit((Condition(_streams_key(name), streams),), (member.put(),))
    except Refused as refused:
        raise InvalidRequest(
            f"the consumer {name!r} follows {_told(refused.found[_streams_key(name)])} by now, "
            f"not {_told(streams)}: another process started it anew"
        ) from refused


def renew_all(members: Sequence[MemberTerm]) -> Rule[bool]:
    """Stay a member of several consumers, by a step that changes nothing but terms.

    False: nothing happened, as one of them is over, or its consumer is another: ``renew`` tells.
    """
    streams = {_streams_key(each.name): each.streams for each in members}
    there = {each.key: each.says for each in members}
    conditions = tuple(Condition(*each) for each in (streams | there).items())
    try:
        yield Commit(conditions, tuple(each.put() for each in members))
    except Refused:
        return False
    return True


def part(name: str, who: str) -> Rule[None]:
    """Be no member any more."""
    yield Commit(puts=(Put(_key(name, "member", who), None),))


def plan(seen: Seen, who: str, tags: Sequence[str], mine: Collection[str]) -> Plan:
    """Return what a member does so that shards are shared evenly.

    ``mine``: those that it has, as it knows. A member that has too many leaves some; none are
    taken from a member that is there.
    """
    lost = sorted(tag for tag in mine if seen.owners.get(tag) != who)
    members = sorted({who, *seen.members})
    at = members.index(who)
    running = [tag for tag in tags if tag not in seen.stopped]
    share, more = divmod(len(running), len(members))
    # Those that it was given and does not know of are taken again.
    kept = [tag for tag in running if tag in mine and tag not in lost]
    most = share + (at < more)
    leave = kept[most:] + [tag for tag in mine if tag in seen.stopped and tag not in lost]
    free = [
        tag
        for tag in running
        if seen.owners.get(tag) in (None, who) or seen.dead(tag)
        if tag not in kept
    ]
    # Of several who look at once each begins elsewhere.
    first = at * len(free) // len(members)
    room = max(0, most - len(kept))
    taken = (free[first:] + free[:first])[:room]
    # It leaves those that it has no room for: other members take none from a member that is there.
    leave += [tag for tag in unknown_of(seen, who, running, mine) if tag not in taken]
    return Plan(taken, leave, lost)


def unknown_of(seen: Seen, who: str, tags: Sequence[str], mine: Collection[str]) -> list[str]:
    """Return the shards that a member was given by a step whose answer it has not had."""
    return [tag for tag in tags if seen.owners.get(tag) == who and tag not in mine]


def take(name: str, tag: str, who: str) -> Rule[ShardLease | None]:
    """T1, first: take a shard's lease, and raise its fence; None: another process has it.

    Run again after a lost reply it raises the fence once more.
    """
    owner_key, number_key = _key(name, "shard", tag), fence_key(shard_fence(name, tag))
    stopped_key = _key(name, "stopped", tag)
    found = yield Get((owner_key, number_key, stopped_key))
    owner, stopped = found[owner_key], found[stopped_key]
    if stopped not in (None, _RESUMED):
        return None
    conditions = [Condition(key, value) for key, value in found.items()]
    if owner not in (None, who.encode()):
        # Judged in the step that takes it, by the engine's clock.
        conditions.append(Condition(_key(name, "member", (owner or b"").decode()), None))
    number = number_of(found[number_key]) + 1
    try:
        yield Commit(
            tuple(conditions),
            (Put(owner_key, who.encode()), Put(number_key, number.to_bytes(8, "big"))),
        )
    except Refused:
        return None
    before = "" if owner in (None, who.encode()) else (owner or b"").decode()
    return ShardLease(Fence(shard_fence(name, tag), number), before)


def leave(name: str, tag: str, who: str) -> Rule[None]:
    """Let another one have a shard at once, if it is this one's still."""
    key = _key(name, "shard", tag)
    try:
        yield Commit((Condition(key, who.encode()),), (Put(key, None),))
    except Refused:
        return


def stop(name: str, tag: str, who: str, fence: Fence, why: str) -> Rule[None]:
    """Stop a shard: no process takes it until an operator resumes it."""
    key = _key(name, "shard", tag)
    try:
        yield Commit(
            (Condition(key, who.encode()), condition_of(fence)),
            (Put(key, None), Put(_key(name, "stopped", tag), why.encode() or b"stopped")),
        )
    except Refused:
        # It is another one's by now, who finds out the same.
        return


def resume(name: str) -> Rule[list[str]]:
    """Let stopped shards go on, their attempts counted anew, and paused ones; return which."""
    while True:
        seen = yield from look(name)
        if not seen.stopped:
            return []
        keys = {tag: _key(name, "stopped", tag) for tag in sorted(seen.stopped)}
        try:
            yield Commit(
                tuple(Condition(key, seen.stopped[tag].encode()) for tag, key in keys.items()),
                tuple(
                    Put(key, None if seen.stopped[tag].encode() == PAUSED else _RESUMED)
                    for tag, key in keys.items()
                ),
            )
        except Refused:
            continue
        return list(keys)


def resumed(name: str, tag: str) -> Rule[bool]:
    """Return whether an operator lets a shard go on since it was stopped."""
    key = _key(name, "stopped", tag)
    found: Mapping[str, bytes | None] = yield Get((key,))
    return found[key] == _RESUMED


def gone_on(name: str, tag: str) -> Rule[None]:
    """A shard that was resumed has been taken in its store."""
    key = _key(name, "stopped", tag)
    try:
        yield Commit((Condition(key, _RESUMED),), (Put(key, None),))
    except Refused:
        return


def _told(streams: bytes | None) -> str:
    return "nothing" if streams is None else streams.decode()
