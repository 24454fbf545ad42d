"""A call is published as a message that says its method (DESIGN-LOG §15)."""

import asyncio
import sqlite3

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sharedlog
import sharedlog.aio
from tests.sharedlog.reads import messages

RESERVE = "/shop.v1.Inventory/Reserve"


@pytest.fixture
def url(tmp_path):
    """One engine is enough: an envelope is the same in every one."""
    return f"sqlite:///{tmp_path / 'log.db'}"


def test_a_call_is_read_with_its_method_and_request(log):
    """Published alone, in a transaction, and under a name, with the request's type (§15)."""
    log.stream("orders", 1)
    request = StringValue(value="two chairs")
    position = log.publish_call("orders", RESERVE, request, key="customer 7")
    with log.producer().transaction() as transaction:
        transaction.publish_call("orders", RESERVE, request.SerializeToString())
        transaction.publish("orders", b"no call")
    with log.producer("shop").transaction() as transaction:
        transaction.publish_call("orders", RESERVE, request)
    found = messages(log, "orders")
    assert [each.method for each in found] == [RESERVE, RESERVE, "", RESERVE]
    assert (found[0].position, found[0].key) == (position, b"customer 7")
    assert found[0].parse(StringValue) == found[1].parse(StringValue) == request
    assert [each.content_type for each in found[:2]] == 2 * ["application/protobuf"]
    assert found[0].schema_name == "google.protobuf.StringValue"


def test_a_call_commits_with_the_applications_transaction(log, url):
    """``About.method`` says it where the message is appended in one (§15, §12)."""
    log.stream("orders", 1)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")
    log.append_in(connection, "orders", b"", about=sharedlog.About(method=RESERVE))
    connection.execute("COMMIT")
    connection.close()
    assert [each.method for each in messages(log, "orders")] == [RESERVE]


def test_tasks_publish_calls(log, url):
    """The same on an event loop (§15)."""
    log.stream("orders", 1)

    async def publish():
        async with await sharedlog.aio.open(url) as other:
            await other.publish_call("orders", RESERVE, b"\x0a\x01a")
            async with other.producer().transaction() as transaction:
                await transaction.publish_call("orders", RESERVE, StringValue(value="a"))

    asyncio.run(publish())
    first, second = messages(log, "orders")
    assert (first.method, second.method) == (RESERVE, RESERVE)
    assert first.parse(StringValue) == second.parse(StringValue)


@pytest.mark.parametrize(
    "method", ["", "Reserve", "/Inventory", "/a b/C", "/a/", None, "/a/" + 600 * "b"]
)
def test_what_is_no_method_is_refused(log, method):
    """Before anything is sent: a player could never call it (§15)."""
    log.stream("orders", 1)
    with pytest.raises(sharedlog.InvalidRequest):
        log.publish_call("orders", method, b"")
    with pytest.raises(sharedlog.InvalidRequest, match="protobuf"):
        log.publish_call("orders", RESERVE, "a text")
    assert messages(log, "orders") == []
