"""Faults and zombies at each step in turn, for every consumer's store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from sharedlog.testing import die, drain, driven

# Fewer are no transaction of a consumer's.
_STEPS = 8


def meets_a_fault_at_each_step(world_of: Callable[[], Any], fault: Any) -> None:
    """Effects and outputs are those of one run, whichever step it is that is met."""
    for step in itertools.count(1):
        world = world_of()
        met = fault(world.consumer(), **{"before" if fault is die else "of": step})
        drain(world.consumer())
        world.check()
        if not met:
            break
    assert step > _STEPS


def meets_a_zombie_at_each_step(
    world_of: Callable[[], Any],
    lapsed: Callable[[Any], object],
    *,
    alone: str = "",
    steps: int = _STEPS,
) -> None:
    """A process is overtaken before a step, and goes on: that changes nothing.

    ``alone``: the step at which nobody can overtake it, since it has the file's lock. There are
    more than so many ``steps``.
    """
    for step in itertools.count(1):
        world = world_of()
        met = False

        def overtaken(number: int, name: str, world: Any = world, step: int = step) -> None:
            nonlocal met
            if number == step and not met:
                met = True
                if name == alone:
                    return
                lapsed(world)
                drain(world.consumer())
                world.check()

        with driven(world.consumer()) as zombie:
            zombie.before = overtaken
            zombie.drain()
        world.check()
        if not met:
            break
    assert step > steps
