"""Items that are handled one at a time, without a lock (DESIGN §9)."""

from __future__ import annotations

import threading

import pytest

from _rifl_ground.owned_lock import OneByOne


def test_who_posts_waits_for_nobody() -> None:
    """Not for a thread that is held up in the middle: its items are handled when that goes on."""
    items: OneByOne[int] = OneByOne()
    handled: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def handle(item: int) -> None:
        if item == 1:
            begun.set()
            assert go_on.wait(20)
        handled.append(item)
        if item == 2:
            items.post(4, handle)

    first = threading.Thread(target=items.post, args=(1, handle))
    first.start()
    assert begun.wait(20)
    for item in (2, 3):
        items.post(item, handle)
    assert handled == []
    go_on.set()
    first.join(20)
    assert handled == [1, 2, 3, 4]


def test_an_exception_ends_its_post_alone() -> None:
    """What it left is handled by the next post."""
    items: OneByOne[int] = OneByOne()
    handled: list[int] = []

    def handle(item: int) -> None:
        if item == 1:
            items.post(2, handle)
            raise KeyboardInterrupt
        handled.append(item)

    with pytest.raises(KeyboardInterrupt):
        items.post(1, handle)
    items.post(3, handle)
    assert handled == [2, 3]


def test_nothing_is_left_by_many_threads() -> None:
    """Each item once; one that comes as another thread lets go, too."""
    items: OneByOne[int] = OneByOne()
    handled: list[int] = []

    def post(at: int) -> None:
        for _ in range(5000):
            items.post(at, handled.append)

    threads = [threading.Thread(target=post, args=(at,)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert [handled.count(at) for at in range(4)] == [5000] * 4
