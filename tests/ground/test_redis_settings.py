"""Redis servers that may forget what they acknowledge, for all that keep something there (§6).

One body for each user of a Redis: a store, a log, a group's log and a consumer's store.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import curp.log._errors as group_errors
from _rifl_ground.redis.settings import WANTED
from curp.log import open_engine
from rifl._stores import StoreNotDurable
from rifl.core._shared.errors import StoreUnavailable
from sharedlog._consumer.redis import open_redis
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.consumer.members import Gone
from sharedlog._core.errors import LogUnavailable, NotDurable, StoreAway
from sharedlog._engines.redis.opening import create_log, open_log
from tests.curp.log.conformance import Writer
from tests.curp.logs import created
from tests.helpers.pages import page
from tests.helpers.waiting import until
from tests.stores.redis.replica import IDEMPOTENT, Replica, call
from tests.stores.redis.servers import RedisServer

WEAK = [
    ("appendonly", "no"),
    ("appendfsync", "everysec"),
    ("no-appendfsync-on-rewrite", "yes"),
    ("maxmemory-policy", "allkeys-lru"),
    ("replica-read-only", "no"),
]


class User(NamedTuple):
    """What keeps something in a Redis.

    ``begin``: opens it there, and returns what writes once, and what closes it. ``refused``: the
    error where it does not open, ``unavailable``: where it does not write.
    """

    begin: Callable[..., tuple[Callable[[], object], Callable[[], object]]]
    refused: type[Exception]
    unavailable: type[Exception]


def _store(server: RedisServer, **options: Any) -> Any:
    one = Replica(server.url(timeout_s=1, beat_s=0.05, dead_after_s=30, **options))
    client, seqs = one.client(), itertools.count(1)

    def write() -> None:
        # Each acknowledges those before it: the window never fills, however many are refused.
        seq = next(seqs)
        one.finish(one.begin(call(client, seq, first=seq), IDEMPOTENT))

    return write, one.close


def _log(server: RedisServer, **options: Any) -> Any:
    url = server.url(log="l", **options)
    with contextlib.suppress(Exception):
        create_log(url, {}).close()
    engine = open_log(url)
    return lambda: engine.commit(Commit(entries=(NewEntry(b"a", ("t",)),))), engine.close


def _group(server: RedisServer, **options: Any) -> Any:
    url = server.url(group="bank", **options)
    with contextlib.suppress(Exception):
        created(url)
    engine = open_engine(url)
    return lambda: Writer(engine).append(b"a"), engine.close


def _consumer(server: RedisServer, **options: Any) -> Any:
    store, numbers = open_redis(server.url(**options), "billing"), itertools.count(1)
    return lambda: store.take("t", next(numbers), gone=Gone.LEFT, anew=False), store.close


USERS = {
    "store": User(_store, StoreNotDurable, StoreUnavailable),
    "log": User(_log, NotDurable, LogUnavailable),
    "group": User(_group, group_errors.NotDurable, group_errors.LogUnavailable),
    "consumer": User(_consumer, NotDurable, StoreAway),
}


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that each test leaves durable, and empty."""
    server = RedisServer(tmp_path_factory.mktemp("weak-redis"))
    yield server
    server.stop()


@pytest.fixture
def server(module_server: RedisServer) -> Any:
    """It, with what a test has set put back."""
    with module_server.client() as client:
        client.flushall()
        before = {name: client.config_get(name)[name] for name, _ in WEAK}
        yield module_server
        for name, value in before.items():
            client.config_set(name, value)


@pytest.mark.parametrize(("name", "value"), WEAK)
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_a_weak_server_is_refused_unless_one_says_so(
    server: RedisServer, user: User, name: str, value: str
) -> None:
    """Each names the setting; with durability=warn all go on."""
    with server.client() as client:
        client.config_set(name, value)
    with pytest.raises(user.refused, match=f"{name} is {value}"):
        user.begin(server)
    write, close = user.begin(server, durability="warn")
    write()
    close()


@pytest.mark.parametrize("connections", ["those that stay", "new ones"])
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_nothing_is_written_while_a_server_is_weak(
    server: RedisServer, user: User, connections: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noticed on connections that stay, now and then, and on new ones before their use."""
    stay = connections == "those that stay"
    monkeypatch.setattr("_rifl_ground.redis.clients._LOOK_EVERY_S", 0.0 if stay else 1e9)
    write, close = user.begin(server)
    write()

    def refuses() -> bool:
        try:
            write()
        except Exception:  # noqa: BLE001 - which one it is, is asked afterwards
            return True
        return False

    with server.client() as client:
        client.config_set("no-appendfsync-on-rewrite", "yes")
        if not stay:
            client.client_kill_filter(_type="normal", skipme=True)
        until(refuses, "it is noticed")
        with pytest.raises(user.unavailable, match="no-appendfsync-on-rewrite is yes"):
            write()
        client.config_set("no-appendfsync-on-rewrite", "no")
    until(lambda: not refuses(), "it goes on")
    close()


def test_the_page_has_what_is_wanted() -> None:
    """The page of stores in Redis names each setting that is looked at, and what it is to be."""
    text = page("stores-redis.md").read_text()
    for name, (wanted, _) in WANTED.items():
        assert f"| `{name}` | `{wanted}` |" in text
    assert {name for name, _ in WEAK} == set(WANTED)
