"""Oracle: attempts of messages that fail, as each commit counts them (T5)."""

from __future__ import annotations

import struct

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.names import CONSUMER, TAGS
from chaos.sim.log.onlooker import Asked
from sharedlog._core.commit import Commit

__all__ = ["Counting"]

# Of a checkpoint that the log has: before its position, with what is counted.
_DONE = struct.Struct(">BQQ")


class Counting:
    """Attempts of a message are forgotten when it is done, or by an operator: else never."""

    def __init__(self, cast: ConsumerCast) -> None:
        self._cast = cast
        # Of each shard through which message it is done, and how often the next one was begun.
        self._seen: dict[str, tuple[str, int]] = {}
        # Shards that an operator lets go on, whose attempts may be forgotten once.
        self._resumed: set[str] = set()
        cast.server.watchers.append(self._see)
        cast.database.watchers.append(self._look)

    def _see(self, asked: Asked, commit: Commit) -> None:
        del asked
        for put in commit.puts:
            for tag in TAGS:
                resumed = put.key == f"consumer/{CONSUMER}/stopped/{tag}" and put.value == b""
                if resumed or put.key == f"consumer/{CONSUMER}/reset/{tag}":
                    self._resumed.add(tag)
                elif put.key == f"state/{CONSUMER}/{tag}/done" and put.value is not None:
                    _, _, attempts = _DONE.unpack_from(put.value)
                    self._note(tag, put.value[_DONE.size :].decode(), attempts)

    def _look(self) -> None:
        cast = self._cast
        for tag, position, attempts in cast.database.attempts():
            if cast.went_back:
                self._seen.clear()
            self._note(tag, position, attempts)

    def _note(self, tag: str, position: str, attempts: int) -> None:
        at, before = self._seen.get(tag, ("", 0))
        self._seen[tag] = position, attempts
        if at != position:
            self._resumed.discard(tag)
        elif attempts < before:
            if tag not in self._resumed:
                text = f"{tag} at {position}: {before} attempts, and then {attempts}"
                self._cast.oracle.broken("counted", text)
            self._resumed.discard(tag)
