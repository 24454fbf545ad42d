"""The user's encryption of messages: with its key, without it, with another (DESIGN-LOG §12)."""

import copy
import sqlite3
import zlib
from contextlib import closing
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet, MultiFernet

import sharedlog
import sharedlog.aio
from sharedlog._core.envelope import pack
from sharedlog._core.sealing import is_sealed

OLD, NEW, OTHER = (Fernet(Fernet.generate_key()) for _ in range(3))


def keys(fernet):
    """Return both hooks: Fernet has no associated data, so that goes in front."""

    def unseal(data, associated):
        place, _, found = fernet.decrypt(data).partition(b"\0")
        if place != associated:
            raise ValueError(f"sealed for {place!r}")
        return found

    return {"seal": lambda data, at: fernet.encrypt(at + b"\0" + data), "unseal": unseal}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def log(url):
    with sharedlog.create(url, **keys(OLD)) as made:
        made.stream("s", 1, timedelta(0))
        yield made


def test_what_is_published_is_sealed_whole(log, url, tmp_path):
    """Value, key, headers and what is said of a message are not in the store; streams are."""
    about = sharedlog.About(causation_id="the-cause", schema_name="the-schema")
    log.publish("s", b"the-value", key="the-key", headers={"the-header": "1"}, about=about)
    with log.producer().transaction() as transaction:
        transaction.publish("s", "the-value in a transaction")
    first, second = log.read("s", 0)
    assert (first.value, first.key, first.headers) == (
        b"the-value",
        b"the-key",
        {"the-header": b"1"},
    )
    assert (first.causation_id, first.schema_name, first.sealed) == (
        "the-cause",
        "the-schema",
        False,
    )
    assert second.text == "the-value in a transaction"
    assert copy.copy(first) == first
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (b"the-value", b"the-key", b"the-header", b"the-cause", b"the-schema"):
        assert secret not in kept
    assert b"s/0" in kept


@pytest.mark.parametrize(
    ("given", "why"), [({}, "no unseal was given"), (keys(OTHER), "InvalidToken")]
)
def test_without_its_key_a_message_says_where_it_is(log, url, given, why):
    """No key, or another one, is a typed error of that message alone; nothing is skipped (L1)."""
    position = log.publish("s", b"one", key="k")
    with sharedlog.open(url, **given) as blind, blind.follow("s") as following:
        [message] = following.poll()
        assert (message.sealed, message.position, message.stream) == (True, position, "s")
        assert message.append_time
        assert "sealed" in repr(message)
        for name in ("value", "text", "key", "headers", "content_type", "trace_parent"):
            with pytest.raises(sharedlog.SealedMessage, match=why) as caught:
                getattr(message, name)
            assert caught.value.appended is False
        assert copy.copy(message).sealed
        log.publish("s", b"two")
        assert len(following.poll(10)) == 1


def test_keys_are_rotated(log, url):
    """Messages of before encryption, of the old key and of the new one are read together."""
    with sharedlog.open(url) as plain:
        plain.publish("s", b"plain")
    log.publish("s", b"old")
    with sharedlog.open(url, **keys(MultiFernet([NEW, OLD]))) as rotated:
        rotated.publish("s", b"new")
        assert [each.value for each in rotated.read("s", 0)] == [b"plain", b"old", b"new"]
    with sharedlog.open(url, **keys(NEW)) as later:
        assert [each.sealed for each in later.read("s", 0)] == [False, True, False]


def test_a_message_that_was_moved_is_not_opened(log, url, tmp_path):
    """A holder of the database cannot have a message read where it was not published (§12)."""
    log.stream("other", 1)
    log.publish("s", b"pay alice")
    log.publish("other", b"pay mallory")
    log.close()
    with closing(sqlite3.connect(tmp_path / "log.db")) as database, database:
        query = "SELECT lsn, mark, body FROM sharedlog_entry WHERE tags LIKE ?"
        [mine] = database.execute(query, ("s/0%",))
        [other] = database.execute(query, ("other/0%",))
        for (lsn, mark, _), (*_, body) in ((mine, other), (other, mine)):
            database.execute(
                "UPDATE sharedlog_entry SET body = ?, checksum = ? WHERE lsn = ?",
                (body, zlib.crc32(body, mark), lsn),
            )
    with sharedlog.open(url, **keys(OLD)) as again:
        for stream in ("s", "other"):
            [message] = again.read(stream, 0)
            assert message.sealed
            with pytest.raises(sharedlog.SealedMessage, match="sealed for"):
                _ = message.value


def test_the_same_content_under_another_seal_is_the_same(log, url):
    """A named seq is answered after a restart, and after a rotation: by the plain content (L3)."""
    for fernet in (OLD, OLD, NEW):
        with (
            sharedlog.open(url, **keys(fernet)) as again,
            again.producer("relay").transaction(seq=1, follows=0) as transaction,
        ):
            transaction.publish("s", b"one")
    assert len(log.read("s", 0)) == 1
    with (
        pytest.raises(sharedlog.AlreadyCommitted),
        log.producer("relay").transaction(seq=1, follows=0) as transaction,
    ):
        transaction.publish("s", b"other")


def test_what_seal_raises_is_raised(url):
    """A key that is not to be had: nothing is sent, nothing waits behind it (L3)."""

    def broken(data, associated):
        raise ConnectionError("no key server")

    with sharedlog.create(url, **keys(OLD) | {"seal": broken}) as log:
        log.stream("s", 1)
        with pytest.raises(ConnectionError, match="no key server"):
            log.publish("s", b"one")
        with pytest.raises(ConnectionError), log.producer().transaction() as transaction:
            transaction.publish("s", b"one")
        assert log.read("s", 0) == []


def test_seal_and_unseal_come_together(url):
    """One without the other is refused before anything is made (DESIGN §9)."""
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.create(url, seal=keys(OLD)["seal"])
    with pytest.raises(sharedlog.NoSuchLog):
        sharedlog.open(url, **keys(OLD))


def test_what_unseal_makes_up_is_no_message(log, url):
    """An unseal that returns rubbish, or something sealed again, is a typed error."""
    log.publish("s", b"one")
    for unsealed in (b"\xff", b"", None, b"\x08\x02"):
        made_up = {"unseal": lambda data, associated, found=unsealed: found}
        with sharedlog.open(url, **keys(OLD) | made_up) as log_:
            [message] = log_.read("s", 0)
            with pytest.raises(sharedlog.SealedMessage):
                _ = message.value


def test_a_plain_envelope_is_never_taken_for_a_sealed_one():
    """They begin with their version (DESIGN-LOG §12)."""
    assert not is_sealed(pack(b"", None, None, 0))


async def test_tasks_seal_too(url):
    """The same on an event loop (DESIGN §9, thin shells)."""
    async with await sharedlog.aio.create(url, **keys(OLD)) as log:
        await log.stream("s", 1)
        await log.publish("s", b"one")
        async with log.producer().transaction() as transaction:
            await transaction.publish("s", b"two")
        assert [each.value for each in await log.read("s", 0)] == [b"one", b"two"]
    async with await sharedlog.aio.open(url) as log:
        assert [each.sealed for each in await log.read("s", 0)] == [True, True]
