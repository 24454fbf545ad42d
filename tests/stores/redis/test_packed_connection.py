"""The connection that carries what calls ask (rifl._stores.redis.packed_connection; DESIGN §6)."""

from __future__ import annotations

import asyncio
import hashlib
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio

from rifl._stores.redis.packed_connection import AioPackedConnection, PackedConnection, packed
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.invariant import InvariantViolated
from tests.helpers.waiting import until
from tests.stores.redis.replica import call

TEXT = "return ARGV[1]"


def _script(text):
    """Return what ``Script`` is of this text."""
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return SimpleNamespace(text=text, sha=sha, sha_bytes=sha.encode())


ECHO = _script(TEXT)
SLOW_TEXT = "local n = 0 for i = 1, 2e7 do n = n + i end return ARGV[1]"
SLOW = _script(SLOW_TEXT)
UNKNOWN = SimpleNamespace(text="return 1", sha="0" * 40, sha_bytes=b"0" * 40)


def echoes(*values):
    """Commands that are answered with these values."""
    return [(ECHO, [b"0", value.encode()]) for value in values]


class Interrupting(list):
    """Commands whose sender is interrupted after it has read the first reply."""

    def __init__(self, commands):
        super().__init__(commands)
        self._passes = 0

    def __iter__(self):
        self._passes += 1
        if self._passes == 1:
            yield from super().__iter__()
            return
        yield self[0]
        raise KeyboardInterrupt


@pytest.fixture
def client(shared_server):
    """redis-py's own client, to a server that knows the script."""
    with shared_server.client() as client:
        client.script_load(ECHO.text)
        yield client


@pytest.fixture
def line(client):
    """A line as a store has it."""
    line = PackedConnection(
        redis.BlockingConnectionPool(**client.connection_pool.connection_kwargs)
    )
    yield line
    line.close()


@pytest.mark.parametrize("part", [b"", b"a", "\xe4\u20ac".encode(), b"\x00\r\n", b"-1", b"%d%%b"])
def test_commands_are_packed_as_redis_py_does(client, part):
    """Byte for byte what redis-py would send (RESP)."""
    connection = client.connection_pool.make_connection()
    theirs = connection.pack_commands([("EVALSHA", ECHO.sha, 1, part, part)] * 2)
    assert packed([(ECHO, [b"1", part, part])] * 2) == b"".join(theirs)


def test_every_reply_is_told_in_order_errors_too(line):
    """One command that fails leaves the others' replies where they belong."""
    found = line.exchange([*echoes("a"), (UNKNOWN, [b"0"]), *echoes("b")])
    assert (found[0], found[2]) == (b"a", b"b")
    assert isinstance(found[1], redis.exceptions.NoScriptError)


def test_a_broken_connection_is_made_anew(line, client):
    """The commands are sent again: carrying out a request twice is harmless (DESIGN §6)."""
    assert line.exchange(echoes("a")) == [b"a"]
    client.client_kill_filter(_type="normal", skipme=True)
    assert line.exchange(echoes("b", "c")) == [b"b", b"c"]


def test_nobody_gets_the_replies_of_one_who_was_interrupted(line):
    """Replies that were not read go with the connection: one of another claim would lie (§4)."""
    with pytest.raises(KeyboardInterrupt):
        line.exchange(Interrupting(echoes("a", "b", "c")))
    assert line.exchange(echoes("d", "e")) == [b"d", b"e"]


def test_one_caller_at_a_time(line):
    """A second one would read the first one's replies: it is stopped (invariant 1)."""

    class Nested(list):
        def __iter__(self):
            line.exchange(echoes("within"))
            return super().__iter__()

    with pytest.raises(InvariantViolated):
        line.exchange(Nested(echoes("a")))
    assert line.exchange(echoes("b")) == [b"b"]


async def test_nobody_gets_the_replies_of_a_task_that_was_cancelled(client, shared_server):
    """The same on an event loop, where deadlines cancel (DESIGN §4)."""
    kwargs = client.connection_pool.connection_kwargs
    pool = redis.asyncio.BlockingConnectionPool(host=kwargs["host"], port=kwargs["port"])
    line = AioPackedConnection(pool)
    client.script_load(SLOW.text)
    assert await line.exchange(echoes("a")) == [b"a"]
    waiting = asyncio.create_task(line.exchange([(SLOW, [b"0", b"b"]), *echoes("c")]))
    await asyncio.sleep(0)
    with pytest.raises(InvariantViolated):
        await line.exchange(echoes("d"))
    while not waiting.done():
        waiting.cancel()
        await asyncio.sleep(0)
    assert waiting.cancelled()
    assert await line.exchange(echoes("d", "e")) == [b"d", b"e"]
    line.close(asyncio.get_running_loop())
    await asyncio.sleep(0)


def test_a_redis_without_the_scripts_is_given_them(replicas, client):
    """It forgets them when it restarts: calls go on (DESIGN §6)."""
    one = replicas()
    client_id = one.client()
    client.script_flush()
    attempt = one.begin(call(client_id, 1))
    client.script_flush()
    assert one.finish(attempt) is None
    assert one.claim(attempt.call).verdict is Verdict.COMPLETED
    until(lambda: not one.store._attempts.unsettled(), "it is settled")
