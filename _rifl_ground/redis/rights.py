"""Rights of a Redis user: may it do all that scripts do? Tried at start (DESIGN §6).

A script is not undone when one of its commands is refused: what went before stands. So
every command is tried before the first call, on keys that nothing else uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import redis

from _rifl_ground.redis.lua import Script

RIGHTS = Script(files("_rifl_ground.redis") / "scripts", ("rights",))
MAY = Script(files("_rifl_ground.redis") / "scripts", ("may",), writes=False)
_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'")
_DENIED = re.compile(
    r"NOPERM|ACL failure|can't run this command|can't access at least one of the keys"
    r"|can't publish to the channel|[Uu]nknown (Redis )?command"
)
_SUBSCRIBE_S = 5.0
# Each on keys of one type; the last ones leave nothing behind.
_PROBES = """
HSET @hash one 1
HSETNX @hash two 2
HGET @hash one
HMGET @hash one two
HGETALL @hash
HKEYS @hash
HLEN @hash
HEXISTS @hash one
HINCRBY @hash one 1
HDEL @hash two
SET @text 1
GET @text
INCRBY @text 1
EXISTS @text
ZADD @sorted 0 one
ZSCORE @sorted one
PEXPIRE @sorted 60000
ZCARD @sorted
ZRANGE @sorted 0 0
ZRANGEBYSCORE @sorted -inf 0
ZRANGEBYLEX @sorted - +
ZREMRANGEBYSCORE @sorted -inf -1
ZREM @sorted two
LPUSH @list one
LINDEX @list 0
LRANGE @list 0 -1
LTRIM @list 0 0
XADD @stream * one 1
XRANGE @stream - +
XTRIM @stream MAXLEN 1
TIME
PUBLISH * probe
DEL @text
UNLINK @hash @text @sorted @list @stream
"""


def probe(scripts: Iterable[Any], channel: str = "") -> list[Any]:
    """Return the arguments of the script that tries all commands these scripts call."""
    return _flat(_tried(scripts, channel))


def _tried(scripts: Iterable[Any], channel: str) -> list[list[str]]:
    called = {name for script in scripts for name in _CALLED.findall(script.text)}
    found = []
    for line in _PROBES.split("\n"):
        words = line.split()
        if words and words[0] in called:
            if words[0] == "PUBLISH":
                words[1] = channel
            found.append(words)
    return found


def _flat(commands: Iterable[Sequence[str]]) -> list[Any]:
    return [part for words in commands for part in (len(words), *words)]


def refused(failed: Sequence[Any]) -> list[str]:
    """Return the commands that the user may not use, of what the script told.

    Raises Redis' error if one failed for another reason.
    """
    told = [part.decode() if isinstance(part, bytes) else str(part) for part in failed]
    commands = []
    for command, error in zip(told[::2], told[1::2], strict=True):
        if not _DENIED.search(error):
            raise redis.ResponseError(f"{command}: {error}")
        commands.append(command)
    return commands


def missing_in_scripts(
    client: Any, keys: Iterable[str], scripts: Sequence[Any], channel: str = ""
) -> list[str]:
    """Return what the client's user may not do of what scripts do, for people.

    ``keys``: how the keys to try begin, one in each part of the keyspace that matters.
    """
    arguments = probe(scripts, channel)
    missing: list[str] = []
    try:
        client.script_load(RIGHTS.text)
    except redis.exceptions.NoPermissionError:
        missing.append("SCRIPT LOAD")
    for key in keys:
        try:
            client.evalsha(RIGHTS.sha, 1, key, *arguments)
        except redis.exceptions.NoScriptError:
            pass
        except redis.exceptions.NoPermissionError as error:
            missing.append(_told("EVALSHA", key, error))
        try:
            failed = client.eval(RIGHTS.text, 1, key, *arguments)
        except redis.exceptions.NoPermissionError as error:
            missing.append(_told("EVAL", key, error))
            continue
        missing += [
            f"{command} {channel if command == 'PUBLISH' else key + ':*'}"
            for command in refused(failed)
        ]
    return list(dict.fromkeys(missing))


def lacking(
    client: Any,
    keys: Iterable[str],
    scripts: Sequence[Any],
    channel: str = "",
    outside: Sequence[Sequence[str]] = (),
) -> list[str] | None:
    """Return what the user may not do of what is tried at a start, and try none of it.

    ``outside``: commands that are given beside scripts. None: the server cannot tell.
    """
    missing: list[str] = []
    for key in keys:
        commands = [
            *_tried(scripts, channel),
            *(["SCRIPT", "LOAD", "return 1"], ["EVALSHA", RIGHTS.sha, "1", key]),
            *map(list, outside),
        ]
        try:
            word, *numbers = client.eval(MAY.text, 1, key, *_flat(commands))
        except redis.exceptions.NoPermissionError as error:
            missing.append(_told("EVAL", key, error))
            continue
        if word == b"unknown":
            return None
        missing += [_named(commands[int(number)], key) for number in numbers]
    return list(dict.fromkeys(missing))


def _named(words: Sequence[str], key: str) -> str:
    if any(word.startswith("@") for word in words):
        return f"{words[0]} {key}:*"
    if words[0] in ("EVALSHA", "SCRIPT"):
        return {"EVALSHA": f"EVALSHA {key}", "SCRIPT": "SCRIPT LOAD"}[words[0]]
    return " ".join(word for word in words if word != "probe")


def missing_outside(client: Any, channel: str) -> list[str]:
    """Return what the client's user may not do of what is asked beside scripts."""
    missing = []
    try:
        client.info("server")
    except redis.exceptions.NoPermissionError:
        missing.append("INFO")
    subscription = client.pubsub()
    try:
        subscription.subscribe(channel)
        subscription.get_message(timeout=_SUBSCRIBE_S)
    except redis.exceptions.NoPermissionError:
        missing.append(f"SUBSCRIBE {channel}")
    finally:
        subscription.close()
    return missing


def _told(command: str, key: str, error: Exception) -> str:
    # Redis 6 speaks of "one of the keys", Redis 8 of "a key".
    return f"{command} {key}" if "key" in str(error) else command
