"""Script calls to one group's log in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from curp.log._engine import NewLog
from curp.log._errors import CorruptLog, LogExists, NoSuchLog
from curp.log._owner import GROUPS
from curp.log._redis.scripts import OPEN, SERVING
from rifl._stores.redis.address import RedisAddress
from sharedlog._engines.redis.lua import Script
from sharedlog._engines.redis.server import Server

FORMAT = 1


class Connection:
    """One process's way to a group's log in Redis. Any thread.

    Every script is told the log's id and the highest tail that was seen here, and
    does nothing if the log is another or ends before: a server that restarted empty,
    or a replica that lacks what its primary had acknowledged. That is ``CorruptLog``.
    """

    def __init__(
        self,
        address: RedisAddress,
        group: str,
        replicas: int,
        *,
        new: NewLog | None,
        read_only: bool,
    ) -> None:
        self._address = address
        self._prefix = f"curp:{{{group}}}:"
        self._seen = 0
        self._log_id: bytes = b""
        self._server = Server(address, GROUPS, replicas=replicas)
        self.durability = self._server.durability
        self.closing = self._server.closing
        try:
            if not read_only:
                self._server.check_rights(self.key("probe"), SERVING)
            self._open(group, new, waits=not read_only and replicas > 0)
        except BaseException:
            self._server.close()
            raise

    def key(self, *names: str) -> str:
        """Return the name of one of the group's keys."""
        return self._prefix + ":".join(names)

    def tag_key(self, tag: str) -> str:
        """Return the name of a tag's sorted set."""
        return self.key("tag", tag)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        """Run a script; return its reply without ``ok``, or from ``refused`` and the like on.

        Its first value is the tail. One that does not write is asked twice.
        """
        names = [self.key("control"), self.key("log"), self.key("metadata"), *keys]
        reply = self._server.ask(script, names, [self._log_id, self._seen, *arguments])
        status = reply[0]
        if status == b"other":
            raise CorruptLog(f"{self._address} has lost the log, or has another one in its place")
        if status == b"back":
            raise CorruptLog(f"the log went back: it ends at {reply[1]}, and {self._seen} was seen")
        if status == b"changed":
            raise CorruptLog.with_another(reply[1])
        tail = reply[2] if status == b"refused" else reply[1]
        self._seen = max(self._seen, int(tail))
        return reply

    def block(self, after: int, timeout_s: float) -> None:
        """Wait until there is an entry after that one, or the time is over, or some of it."""
        self._server.block(self.key("log"), after, timeout_s)

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._server.close()

    def _open(self, group: str, new: NewLog | None, *, waits: bool) -> None:
        arguments: list[Any] = [int(waits)]
        if new is not None:
            arguments += [secrets.token_hex(16), FORMAT, new.trimmed, new.configuration]
            arguments += [part for pair in new.metadata.items() for part in pair]
        names = [self.key("control"), self.key("log"), self.key("metadata")]
        reply = self._server.ask(OPEN, names, arguments)
        if reply[0] == b"none":
            raise NoSuchLog.of(str(self._address), group)
        if reply[0] == b"exists":
            raise LogExists.of(str(self._address), group)
        if reply[0] == b"damaged":
            raise CorruptLog(f"{self._address} has no control row for the group {group!r}")
        self._log_id = reply[1]
        if not reply[2].isdigit() or int(reply[2]) < 1:
            raise CorruptLog(f"the log of {group!r} has no format number")
        if int(reply[2]) > FORMAT:
            raise CorruptLog(
                f"the log of {group!r} has format {int(reply[2])}, written by a newer release; "
                f"this one knows {FORMAT}"
            )
