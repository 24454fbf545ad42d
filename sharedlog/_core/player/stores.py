"""The stores of a player's targets: in which one each target's index is (DESIGN-LOG §15, P6).

``player/NAME/store/TARGET`` has, by the number of the index, the id of the store that it was begun
in: what answers from another one is no index of this target's, whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.player.rows import Order, parsed, row_key, written
from sharedlog._core.steps import Get, Rule

# Indexes of which it is known: the newest.
_MOST = 32


class Stores(NamedTuple):
    """Of one target: a store's id by an index's number; who last said that it is another one."""

    ids: Mapping[int, str] = {}
    adopted: Order | None = None


def stores_of(player: str, target: str) -> Rule[Stores]:
    """Return in which stores a target's indexes are, as far as that is known."""
    key = row_key(player, "store", target)
    return _read(key, (yield Get((key,)))[key])


def bind(player: str, target: str, number: int, store: str, fence: Fence) -> Rule[str]:
    """Return in which store an index is: in this one, unless that was said before.

    Raises ``Fenced`` for who leads no more.
    """
    key = row_key(player, "store", target)
    while True:
        value = (yield Get((key,)))[key]
        known = _read(key, value)
        if number in known.ids:
            return known.ids[number]
        put = _put(key, known, number, store)
        try:
            yield Commit((Condition(key, value), condition_of(fence)), (put,))
        except Refused as refused:
            check_fence(fence, refused.found[fence_key(fence.name)])
            continue
        return store


def adopt(player: str, target: str, number: int, store: str, order: Order) -> Rule[None]:
    """Have an index be in this store from now on: an operator moved it there."""
    key = row_key(player, "store", target)
    while True:
        value = (yield Get((key,)))[key]
        put = _put(key, _read(key, value)._replace(adopted=order), number, store)
        try:
            yield Commit((Condition(key, value),), (put,))
        except Refused:
            continue
        return


def _put(key: str, known: Stores, number: int, store: str) -> Put:
    ids = sorted((dict(known.ids) | {number: store}).items())[-_MOST:]
    return Put(key, written({"ids": ids, "adopted": known.adopted}))


def _read(key: str, value: bytes | None) -> Stores:
    return Stores() if value is None else parsed(key, value, _stores)


def _stores(data: dict[str, Any]) -> Stores:
    adopted = data["adopted"]
    return Stores(
        {int(number): str(store) for number, store in data["ids"]},
        None if adopted is None else Order(*adopted),
    )
