"""A linearizability checker, for one account at a time: is there an order?

Wing and Gong's search (1993) with Lowe's memory of configurations (2017), account by
account, which suffices since linearizability is local (Herlihy and Wing 1990; Horn and
Kroening 2015 call it P-compositionality).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "Undecided", "linearizable"]

# Configurations looked at before the search gives up.
_LIMIT = 200_000
_FOREVER = float("inf")


class Undecided(Exception):
    """The search has grown too large to say."""


class Interval(NamedTuple):
    """One operation on an account: when it was asked for and answered.

    ``amount`` None: a read. ``ended`` None: no caller was told, so it may take effect at
    any later time or never; ``must`` then says that it did. ``version`` and ``total`` are
    what the account holds after it, as far as that is known.
    """

    call: int
    started: int
    ended: int | None
    amount: int | None
    version: int | None = None
    total: int | None = None
    must: bool = True


def linearizable(operations: Sequence[Interval], limit: int = _LIMIT) -> bool:
    """Whether the operations on one account, from (0, 0), have a legal order.

    Legal: every operation takes effect between its start and its end, and returns what
    the account then holds. Where every version is known, and all of them happened, there
    is one order to look at; else it is searched for. Raises ``Undecided`` after ``limit``
    configurations.
    """
    if all(each.must and each.version is not None for each in operations):
        return _by_version(operations)
    return _search(operations, limit)


def _by_version(operations: Sequence[Interval]) -> bool:
    """The same, where all versions are known: changes by theirs, reads behind them."""
    order = sorted(
        operations,
        key=lambda each: (each.version, each.amount is None, each.started),
    )
    version = total = 0
    for each in order:
        if each.amount is not None:
            version, total = version + 1, total + each.amount
        if each.version != version or each.total not in (None, total):
            return False
    # Nothing may have ended before something that comes earlier in this order began.
    first_end = _FOREVER
    for each in reversed(order):
        if first_end < each.started:
            return False
        if each.ended is not None and each.ended < first_end:
            first_end = each.ended
    return True


def _search(operations: Sequence[Interval], limit: int) -> bool:
    order = sorted(operations, key=lambda each: each.started)
    ends = [_FOREVER if each.ended is None else each.ended for each in order]
    wanted = sum(1 << at for at, each in enumerate(order) if each.must)
    seen: set[tuple[int, int, int]] = set()
    # A configuration: which operations have taken effect, and what the account holds.
    stack = [(0, 0, 0)]
    while stack:
        configuration = stack.pop()
        if configuration in seen:
            continue
        seen.add(configuration)
        if len(seen) > limit:
            raise Undecided(f"more than {limit} configurations of {len(order)} operations")
        done, version, total = configuration
        if done & wanted == wanted:
            return True
        # Who comes next must have started before anybody left has ended.
        first_end = _FOREVER
        candidates = []
        lowest = (~done & (done + 1)).bit_length() - 1
        for at in range(lowest, len(order)):
            if done >> at & 1:
                continue
            each = order[at]
            if each.started > first_end:
                break
            if each.must and ends[at] < first_end:
                first_end = ends[at]
            candidates.append(at)
        for at in reversed(candidates):
            each = order[at]
            if each.started > first_end:
                continue
            after = version, total
            if each.amount is not None:
                after = version + 1, total + each.amount
            if each.version in (None, after[0]) and each.total in (None, after[1]):
                stack.append((done | 1 << at, *after))
    return False
