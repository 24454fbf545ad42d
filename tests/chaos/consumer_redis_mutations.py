"""Rules of DESIGN-LOG §14, each broken on purpose: a consumer's store that is a Redis."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import redis

from chaos.sim.consumer.redis_data import RedisData, parts_of
from sharedlog._consumer.redis_transaction import RedisTransaction

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]
_patched = unittest.mock.patch.object


def commits_by_anybody() -> _Patch:
    """The script does not judge the fence."""
    original = RedisData._script_commit

    def commit(self: RedisData, row: bytes, calls: bytes, words: list[bytes]) -> list[Any]:
        return original(self, row, calls, [self._fence(row), *words[1:]])

    return _patched(RedisData, "_script_commit", commit)


def moved_by_a_failed_command() -> _Patch:
    """What a failed command has cut short is taken for done."""
    original = RedisData._script_commit

    def commit(self: RedisData, row: bytes, calls: bytes, words: list[bytes]) -> list[Any]:
        found = original(self, row, calls, words)
        if found[:2] == [b"failed", b"1"]:
            self._call(b"HDEL", row, b"broken")
            parts = parts_of(words)
            intent = parts[-1].head + b"".join(each.piece for each in parts)
            self._moved(row, parts[-1].position, words[2 if intent else 1], intent)
            return [b"ok"]
        return found

    return _patched(RedisData, "_script_commit", commit)


def part_not_marked() -> _Patch:
    """Of a transaction that a failed command has cut short nothing is noted."""
    original = RedisData._failed

    def failed(self: RedisData, row: bytes, why: str, told: list[Any], *, wrote: bool) -> list[Any]:
        found = original(self, row, why, told, wrote=wrote)
        self._call(b"HDEL", row, b"broken")
        return [found[0], b"0", *found[2:]]

    return _patched(RedisData, "_failed", failed)


def watched_in_vain() -> _Patch:
    """A transaction commits though a key has changed that its handler has read."""

    def carry(self: RedisTransaction, *words: Any) -> Any:
        assert self.connection is not None
        self.connection.send_command(*words)
        return self.connection.read_response()

    return _patched(RedisTransaction, "carry", carry)


def lost_means_changed() -> _Patch:
    """A commit that was not answered is taken for one that a watched key has prevented."""
    original = RedisTransaction.carry

    def carry(self: RedisTransaction, *words: Any) -> Any:
        try:
            return original(self, *words)
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    return _patched(RedisTransaction, "carry", carry)


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a script commits whatever the fence is", "§14: T1", commits_by_anybody, 48),
    ("a failed command moves the checkpoint", "§14: T5", moved_by_a_failed_command, 20),
    ("a part of a transaction not marked", "§14: T5", part_not_marked, 4),
    ("a watched key changes, and nobody minds", "§14: T5", watched_in_vain, 4),
    ("a lost answer taken for a changed key", "§14: T5", lost_means_changed, 20),
)
