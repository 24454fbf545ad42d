"""Keys of a log that were changed in its store: each is damage, in every engine (DESIGN-LOG §12).

In memory nothing changes what was written.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import sharedlog
from sharedlog._core.commit import Commit, Put
from sharedlog._core.verifying import Verifier
from sharedlog.v1 import sharedlog_pb2 as pb
from tests.compat.shared_logs import fill
from tests.helpers.store_keys import StoreKeys, check_changed, check_swapped
from tests.sharedlog.places import SHARED, url_of

pytestmark = pytest.mark.faults

_NUMBERS = ("fence/", "producers", "holds", "open/", "span/")


@pytest.fixture(params=SHARED)
def engine(request):
    """The engine's name."""
    return request.param


@pytest.fixture
def server(engine, request):
    """Where the log is; None of a file."""
    return None if engine == "sqlite" else request.getfixturevalue(f"shared_{engine}")


@pytest.fixture
def url(engine, request, tmp_path):
    """Of a log with a little of everything."""
    found = url_of(engine, tmp_path, request.getfixturevalue)
    with sharedlog.create(found) as made:
        fill(made)
        made._engine.commit(Commit(puts=(Put("member/one", b"1", term_s=600.0),)))
    return found


@pytest.fixture
def log(url):
    """That log, opened."""
    with sharedlog.open(url) as opened:
        yield opened


@pytest.fixture
def keys(url, server):
    """What the store keeps of it."""
    return StoreKeys(url, server)


def problems(log):
    """What ``sharedlog verify`` tells of a log."""
    verifier = Verifier()
    while log._run(verifier.read()):
        pass
    return log._run(verifier.report()).problems


def sensible(key, value):
    """Another value that the key could have had."""
    if key.startswith("hold/"):
        # Its LSN.
        return value[:2] + _next(value[2:10]) + value[10:]
    if key.startswith(_NUMBERS) or key.endswith("/seq"):
        return _next(value)
    if key.startswith("named/"):
        return _next(value[:8]) + value[8:]
    if key.startswith("stream/"):
        stream = pb.Stream.FromString(value)
        stream.substreams += 1
        return stream.SerializeToString()
    if key == "log/incarnation":
        return bytes(reversed(value)) if value != bytes(reversed(value)) else b"0" * 16
    return value[:-1] + bytes([value[-1] ^ 1])


def _next(number):
    return (int.from_bytes(number, "big") + 1).to_bytes(len(number), "big")


def test_a_changed_key_is_damage(log, keys):
    """Of every kind, also where it still makes sense: it is named, and nothing goes on by it."""
    kinds = {key.partition("/")[0] for key in keys.read()}
    assert kinds >= {"fence", "hold", "holds", "log", "named", "open", "producer", "producers"}
    assert kinds >= {"span", "stream", "trimmed", "member"}
    check_changed(keys, log._engine, lambda: problems(log), sensible)


def test_a_value_under_another_key_is_damage(log, keys):
    """Two keys' values that were swapped, each with its own checksum, are named both."""
    check_swapped(keys, log._engine, lambda: problems(log))


def _billing(log):
    with log.follow("orders", name="billing") as following:
        following.poll()


def _new_follower(log):
    log.follow("orders", name="new").close()


def test_what_uses_a_changed_key_stops(log, url, keys):
    """No fence is raised, no producer granted, nothing followed or trimmed by a wrong value."""
    log.publish("orders", "mine")
    mine = f"producer/{int.from_bytes(keys.read()['producers'][8:], 'big')}/seq"

    def granted():
        with sharedlog.open(url) as another:
            another.publish("orders", "x")

    def again():
        # What a handle knows of keys it reads anew once another one has written.
        with sharedlog.open(url) as another:
            another.raise_fence("other")
        log.publish("orders", "again")

    uses = {
        "log/incarnation": lambda: sharedlog.open(url),
        "log/format": lambda: sharedlog.open(url),
        "fence/writer": lambda: log.raise_fence("writer"),
        "hold/billing/orders/0": lambda: _billing(log),
        "holds": lambda: _new_follower(log),
        "named/relay": lambda: log.producer("relay").last(),
        "stream/orders": log.streams,
        "producers": granted,
        "trimmed": log.trim,
        mine: again,
    }
    for key, use in uses.items():
        kept = keys.read()[key]
        keys.write(key, kept[:8] + sensible(key, kept[8:]))
        with pytest.raises(sharedlog.CorruptLog, match=f"key '{key}' is damaged"):
            use()
        keys.write(key, kept)
    assert problems(log) == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_an_append_in_a_transaction_does_not_go_on_from_a_changed_seq(log, keys, server):
    """The server, too, checks what it goes on from, and what it puts has its checksum."""

    def append(text):
        with closing(sqlite3.connect(keys.path) if server is None else server.connect()) as made:
            made.execute("BEGIN")
            log.append_in(made, "orders", text)
            made.commit()

    append("one")
    append("two")
    key = "named/@transactions"
    kept = keys.read()[key]
    # Its seq, the content, the LSN, which may be the largest there is.
    for place, byte in ((15, 0), (16, 1), (39, 0), (32, 0x7F)):
        changed = bytearray(kept)
        changed[place] ^= byte or 1
        keys.write(key, bytes(changed))
        with pytest.raises(sharedlog.CorruptLog, match=f"key '{key}' is damaged"):
            append("three")
    keys.write(key, kept)
    append("three")
    assert problems(log) == []
    with log.follow("orders") as following:
        found = [each.value for each in following.poll()]
    assert found[-3:] == [b"one", b"two", b"three"]
