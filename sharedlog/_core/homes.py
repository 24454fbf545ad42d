"""A home: whose commit decides what a producer has pending (DESIGN-LOG §13, C2; §14).

A consumer's shard that publishes more than one append takes commits in its own store, and has the
marker appended afterwards. Until then only the store's owner knows what to decide, so a sweeper
leaves such producers alone. Kept in the log:

- ``home/NAME``: the id of the producer of the named producer NAME, of which there is one;
- ``producer/ID/home``: that name, for as long as there is a producer ID.
"""

from __future__ import annotations

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.names import NameKind, own_name, owner_of
from sharedlog._core.producers import GRANTED, ProducerId, granted, number
from sharedlog._core.spans import retire
from sharedlog._core.steps import Get, Rule, Scan

# Keys that one step removes.
_PIECE = 32


def home_key(name: str) -> str:
    """Return the key of who has something pending for a name."""
    return f"home/{name}"


def homed_key(producer: int) -> str:
    """Return the key that is there where a producer has a home."""
    return f"producer/{producer}/home"


def grant_at(name: str, token: bytes, fence: Fence) -> Rule[ProducerId]:
    """Make the producer of a name, in place of the one before, which is retired; under a fence.

    Raises ``Fenced``. After a lost reply it makes another.
    """
    home = home_key(name)
    while True:
        yield from vacate(name, fence)
        value = (yield Get((GRANTED,)))[GRANTED]
        producer, puts = granted(value, token, 1)
        made = (Put(home, number(producer.id)), Put(homed_key(producer.id), name.encode()))
        try:
            yield Commit(
                (Condition(GRANTED, value), Condition(home, None), condition_of(fence)),
                (*puts, *made),
            )
        except Refused as refused:
            check_fence(fence, refused.found[fence_key(fence.name)])
            continue
        return producer


def vacate(name: str, fence: Fence | None = None) -> Rule[bool]:
    """Retire the producer of a name, which rolls back what it has pending; False: it has none.

    ``fence``: under which that is done; raises ``Fenced``. Without one: an operator's decision.
    """
    home, under = home_key(name), [] if fence is None else [condition_of(fence)]
    while True:
        value: bytes | None = (yield Get((home,)))[home]
        if value is None:
            return False
        yield from retire(int.from_bytes(value, "big"), fence=fence)
        try:
            yield Commit((Condition(home, value), *under), (Put(home, None),))
        except Refused as refused:
            if fence is not None:
                check_fence(fence, refused.found[fence_key(fence.name)])
            continue
        return True


def erase_state(name: str) -> Rule[None]:
    """Remove what the log has of the state of a consumer's shard, whose outputs have this name."""
    kind, consumer = owner_of(name)
    if kind is not NameKind.CONSUMER:
        return
    tag = name.removeprefix(own_name(kind, consumer, ""))
    keys = sorted((yield Scan(f"state/{consumer}/{tag}/")))
    for first in range(0, len(keys), _PIECE):
        yield Commit(puts=tuple(Put(key, None) for key in keys[first : first + _PIECE]))
