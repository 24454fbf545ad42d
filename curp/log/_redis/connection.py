"""Script calls to one log in Redis, and what their failures mean."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from curp.log._engine import NewLog
from curp.log._errors import (
    CorruptLog,
    EngineFull,
    EngineStopped,
    EngineUnavailable,
    InvalidRequest,
    LogExists,
    NoSuchLog,
    NotDurable,
)
from curp.log._redis.scripts import OPEN, SERVING, Script
from curp.log._redis.settings import check_settings
from rifl._log import get_logger
from rifl._stores.redis.address import Durability, RedisAddress
from rifl._stores.redis.clients import Clients
from rifl._stores.redis.rights import missing_in_scripts
from rifl._stores.redis.settings import looked_at, refuse_weak

_log = get_logger("curp.log")
FORMAT = 1
_LOOK_EVERY_S = 2.0
# What is in the way now, said at once or from within a script.
_PASSING = re.compile(
    r"\b(OOM|MISCONF|READONLY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)
# Its maxmemory is reached.
_FULL = re.compile(r"\bOOM\b")


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
        if address.clustered and replicas:
            raise InvalidRequest("replicas= is for a server or Sentinel: a cluster has no WAIT")
        self.closing = threading.Event()
        self._address = address
        self._replicas = replicas
        self._prefix = f"curp:{{{group}}}:"
        self._seen = 0
        self._weak = ""
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        self._log_id: bytes = b""
        with self._errors():
            # Nothing is sent twice on its own: a write whose reply was lost may have happened.
            self._clients = Clients(address, retries=0)
        try:
            with self._errors():
                self.durability = check_settings(self._clients.blocking, address, replicas)
                if not read_only:
                    self._check_rights()
            self._open(group, new, read_only=read_only)
            if address.durability is Durability.REQUIRE:
                # Asked of every new connection: it may lead to another server.
                self._clients.judge = refuse_weak
        except BaseException:
            self._clients.close()
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
        with self._errors():
            if script.writes:
                self._look_again()
            try:
                reply = self._send(script, names, [self._log_id, self._seen, *arguments])
            except (redis.ConnectionError, redis.TimeoutError):
                if script.writes:
                    raise
                reply = self._send(script, names, [self._log_id, self._seen, *arguments])
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
        timeout_ms = int(min(timeout_s, self._address.timeout_s / 2) * 1000)
        with self._errors():
            try:
                self._clients.blocking.xread(
                    {self.key("log"): f"{after}-0"}, count=1, block=max(1, timeout_ms)
                )
            except redis.ResponseError as error:
                # Such as UNBLOCKED, when the key went: the next look finds out.
                if not str(error).startswith("UNBLOCKED"):
                    raise

    def _look_again(self) -> None:
        """Look at the settings now and then, on connections that stay."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._weak = looked_at(self._clients.blocking, self._address)
        if self._weak:
            # At once when it was mended: nothing is written until then.
            self._look_at = now
            raise EngineUnavailable(
                f"{self._address} may forget what it acknowledges: {self._weak}"
            )

    def close(self) -> None:
        """Close the connections; idempotent."""
        if not self.closing.is_set():
            self.closing.set()
            self._clients.close()

    def _check_rights(self) -> None:
        # A script is not undone when one of its commands is refused.
        client, probe = self._clients.blocking, self.key("probe")
        missing = missing_in_scripts(client, [probe], SERVING)
        try:
            client.xread({f"{probe}:stream": "0-0"}, count=1)
        except redis.exceptions.NoPermissionError:
            missing.append("XREAD")
        if missing:
            raise EngineUnavailable(
                f"{self._address}: the user may not {', '.join(missing)} (the least it needs is "
                "in docs/curp-logs.md)"
            )

    def _open(self, group: str, new: NewLog | None, *, read_only: bool) -> None:
        arguments: list[Any] = [int(not read_only and self._replicas > 0)]
        if new is not None:
            arguments += [secrets.token_hex(16), FORMAT, new.trimmed, new.configuration]
            arguments += [part for pair in new.metadata.items() for part in pair]
        with self._errors():
            names = [self.key("control"), self.key("log"), self.key("metadata")]
            reply = self._send(OPEN, names, arguments)
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

    def _send(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        client = self._clients.blocking
        parts = (len(names), *names, *arguments)
        if not (script.writes and self._replicas):
            try:
                reply: list[Any] = client.evalsha(script.sha, *parts)
            except redis.exceptions.NoScriptError:
                reply = client.eval(script.text, *parts)
            return reply
        # One connection for both: WAIT is about the writes of its own.
        timeout_ms = int(self._address.timeout_s * 500)
        for command in (("EVALSHA", script.sha), ("EVAL", script.text)):
            pipe = client.pipeline(transaction=False)
            pipe.execute_command(*command, *parts)
            pipe.execute_command("WAIT", self._replicas, timeout_ms)
            found, replicas = pipe.execute(raise_on_error=False)
            if isinstance(found, redis.exceptions.NoScriptError):
                continue
            for result in (found, replicas):
                if isinstance(result, Exception):
                    raise result
            if replicas < self._replicas and found[0] == b"ok":
                self._lack(script, replicas)
            return list(found)
        raise EngineUnavailable("the server does not keep scripts")

    def _lack(self, script: Script, found: int) -> None:
        told = f"{found} of {self._replicas} replicas acknowledged in time"
        if script is not OPEN:
            raise EngineUnavailable(f"{self._address}: {told}")
        cost = "until they do, no write counts"
        if self._address.durability is Durability.REQUIRE:
            raise NotDurable(
                f"{self._address}: {told}: {cost} (?durability=warn opens it all the same)"
            )
        _log.warning("log_replicas_missing", log=str(self._address), found=told, cost=cost)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self.closing.is_set():
            raise EngineStopped("the log engine is closed")
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if self.closing.is_set():
                raise EngineStopped("the log engine was closed") from error
            raise EngineUnavailable(f"{self._address} cannot be reached: {error}") from error
        except redis.RedisError as error:
            text = str(error)
            if not _PASSING.search(text) and ("WRONGTYPE" in text or "script" in text):
                raise CorruptLog(f"{self._address}: the log's keys are damaged: {text}") from error
            kind = EngineFull if _FULL.search(text) else EngineUnavailable
            raise kind(f"{self._address}: {text}") from error
