"""Script calls to a Redis that keeps logs, and what their failures mean."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import redis

from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients, what_was_said
from _rifl_ground.redis.lua import Script
from _rifl_ground.redis.rights import missing_in_scripts
from _rifl_ground.servers import Durability, Weakness, told
from sharedlog._engines.owner import Owner, refused

_OLDEST = (6, 2)


def check_settings(clients: Clients, address: RedisAddress, replicas: int, owner: Owner) -> str:
    """Return what the settings promise of an append, in a sentence.

    Raises ``not_durable`` for weak settings, unless the address says
    ``durability=warn``: then each is logged with what it costs. Raises ``unavailable`` for a
    server that is older than 6.2.
    """
    check_version(clients, address, owner)
    weak = clients.check_durability(owner.not_durable)
    for setting, cost in weak:
        owner.events.warning("log_not_durable", log=str(address), setting=setting, cost=cost)
    return _sentence(weak, replicas)


def check_version(clients: Clients, address: RedisAddress, owner: Owner) -> None:
    """Raise ``unavailable`` for a server that is too old."""
    information = clients.blocking.info("server")
    # Of several primaries: by their names.
    servers = [information] if "redis_version" in information else information.values()
    for server in servers:
        version = str(server["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            raise owner.unavailable(f"{address} is Redis {version}; a log needs 6.2 or newer")


def _sentence(weak: Sequence[Weakness], replicas: int) -> str:
    kept = told(weak) or "an append is on the server's disk before it is acknowledged"
    if replicas:
        more = (
            f"{replicas} of its replicas have it in memory before it is acknowledged, and a "
            "failover to one that has not loses it"
        )
    else:
        more = "replicas get it later, and a failover to one that has not yet loses it"
    return f"Redis: {kept}; {more}"


# What is in the way now, said at once or from within a script.
_PASSING = re.compile(
    r"\b(OOM|MISCONF|READONLY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)
# The user lacks a right, said at once or from within a script.
_RIGHTS = re.compile(r"\b(NOPERM|ACL failure|no permissions|The user executing the script can't)\b")
# Its maxmemory is reached.
_FULL = re.compile(r"\bOOM\b")


class _Cleaning(NamedTuple):
    """Has what was tried taken away again, whether or not the scripts themselves do such."""

    text: str = "redis.call('UNLINK')"


CLEANING = _Cleaning()


class Server:
    """One process's way to a server that keeps a log, Sentinel's primary or a cluster. Any thread.

    ``replicas``: so many of the server's must have a write before it counts; fewer in time is
    ``unavailable``, and the write stands where it was made. With the address's
    ``durability=require`` a server that may forget what it acknowledged is ``not_durable``, and
    one that becomes so is not written to until it was mended.
    """

    def __init__(self, address: RedisAddress, owner: Owner, *, replicas: int = 0) -> None:
        if address.clustered and replicas:
            raise owner.invalid("replicas= is for a server or Sentinel: a cluster has no WAIT")
        self.closing = threading.Event()
        self._address = address
        self._owner = owner
        self._replicas = replicas
        # How keys begin by which rights are tried, and the scripts that need them.
        self._tried: tuple[str, Sequence[Script]] = ("", ())
        with self._errors():
            # Nothing is sent twice on its own: a write whose reply was lost may have happened.
            self._clients = Clients(address, retries=0)
        try:
            with self._errors():
                self.durability = check_settings(self._clients, address, replicas, owner)
        except BaseException:
            self._clients.close()
            raise

    @property
    def replicas(self) -> int:
        """How many replicas must have a write before it counts."""
        return self._replicas

    def check_rights(self, probe: str, scripts: Sequence[Script]) -> None:
        """Raise ``unavailable`` unless the user may do all that these scripts do.

        ``probe``: how keys to try begin. A script is not undone when one of its commands is
        refused.
        """
        self._tried = (probe, scripts)
        with self._errors():
            client = self._clients.blocking
            missing = missing_in_scripts(client, [probe], [*scripts, CLEANING])
            try:
                client.xread({f"{probe}:stream": "0-0"}, count=1)
            except redis.exceptions.NoPermissionError:
                missing.append("XREAD")
        if missing:
            raise refused(
                self._owner.unavailable(
                    f"{self._address}: the user may not {', '.join(missing)} (the least it needs "
                    f"is in {self._owner.guide})"
                )
            )

    def _missing(self) -> str:
        """Name what the user may not: from within a script older servers do not say which."""
        probe, scripts = self._tried
        with contextlib.suppress(redis.RedisError, OSError):
            found = missing_in_scripts(self._clients.blocking, [probe], [*scripts, CLEANING])
            return ", ".join(found)
        return ""

    def ask(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        """Run a script, and return its reply. One that does not write is asked twice."""
        with self._errors():
            try:
                if script.writes:
                    self._refuse_weak()
                try:
                    return self._send(script, names, arguments)
                except (redis.ConnectionError, redis.TimeoutError):
                    if script.writes:
                        raise
                    return self._send(script, names, arguments)
            except BaseException as error:
                if isinstance(error, (redis.RedisError, *self._owner.errors)):
                    raise
                # A signal's: the next one must not read this one's reply.
                self._clients.interrupted()
                raise

    def block(self, stream: str, after: int, timeout_s: float) -> bool:
        """Wait until the stream has an entry after that one; whether it has.

        It may return before the timeout has passed.
        """
        timeout_ms = int(min(timeout_s, self._address.timeout_s / 2) * 1000)
        with self._errors():
            try:
                found = self._clients.blocking.xread(
                    {stream: f"{after}-0"}, count=1, block=max(1, timeout_ms)
                )
            except redis.ResponseError as error:
                # Such as UNBLOCKED, when the key went: the next look finds out.
                if not str(error).startswith("UNBLOCKED"):
                    raise
                return True
        return bool(found)

    def close(self) -> None:
        """Close the connections; idempotent."""
        if not self.closing.is_set():
            self.closing.set()
            self._clients.close()

    def _refuse_weak(self) -> None:
        if weak := self._clients.weakness():
            raise self._owner.unavailable(
                f"{self._address} may forget what it acknowledges: {weak}"
            )

    def _send(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
        client = self._clients.blocking
        parts = (len(names), *names, *arguments)
        if not (script.writes and self._replicas):
            reply: list[Any] = self._clients.in_room(lambda: script.run(client, parts))
            return reply
        # One connection for both: WAIT is about the writes of its own.
        timeout_ms = int(self._address.timeout_s * 500)
        for command in (("EVALSHA", script.sha), ("EVAL", script.text)):
            pipe = client.pipeline(transaction=False)
            pipe.execute_command(*command, *parts)
            pipe.execute_command("WAIT", self._replicas, timeout_ms)
            found, replicas = self._clients.in_room(
                lambda: pipe.execute(raise_on_error=False)  # noqa: B023 - at once
            )
            if isinstance(found, redis.exceptions.NoScriptError):
                continue
            for result in (found, replicas):
                if isinstance(result, Exception):
                    raise result
            if replicas < self._replicas and found[0] in script.counts:
                self._lack(script, replicas)
            return list(found)
        raise self._owner.unavailable("the server does not keep scripts")

    def _lack(self, script: Script, found: int) -> None:
        told = f"{found} of {self._replicas} replicas acknowledged in time"
        if not script.opens:
            raise self._owner.unavailable(f"{self._address}: {told}")
        cost = "until they do, no write counts"
        if self._address.durability is Durability.REQUIRE:
            raise self._owner.not_durable(
                f"{self._address}: {told}: {cost} (?durability=warn opens it all the same)"
            )
        self._owner.events.warning(
            "log_replicas_missing", log=str(self._address), found=told, cost=cost
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self.closing.is_set():
            raise self._owner.stopped("the log engine is closed")
        try:
            yield
        except redis.exceptions.AuthenticationError as error:
            raise refused(
                self._owner.unavailable(f"{self._address} does not let this user in: {error}")
            ) from error
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if self.closing.is_set():
                raise self._owner.stopped("the log engine was closed") from error
            raise self._owner.unavailable(f"{self._address} cannot be reached: {error}") from error
        except redis.RedisError as error:
            text = what_was_said(error)
            if _RIGHTS.search(text):
                # What a script did before a command of it was refused stays done.
                within = "script" in text
                raise refused(
                    self._owner.unavailable(
                        f"{self._address}: the user lacks a right: "
                        f"{f'{self._missing()}: ' if within else ''}{text} (the least it needs is "
                        f"in {self._owner.guide})"
                    ),
                    whole=not within,
                ) from error
            if not _PASSING.search(text) and ("WRONGTYPE" in text or "script" in text):
                raise self._owner.corrupt(
                    f"{self._address}: the log's keys are damaged: {text}"
                ) from error
            kind = self._owner.full if _FULL.search(text) else self._owner.unavailable
            raise kind(f"{self._address}: {text}") from error
