"""Following on an event loop: what is committed, in order, whoever is cancelled (L6, C3)."""

import asyncio
from itertools import count

import pytest

import sharedlog
import sharedlog.aio


@pytest.fixture
async def opened(url):
    """A log for asyncio, with a stream of one substream."""
    async with await sharedlog.aio.create(url) as made:
        await made.stream("s", 1)
        yield made


async def test_messages_are_followed_as_they_are_published(opened):
    """Those that were there, and those that come (C3)."""
    first = await opened.publish("s", "0")

    async def publish() -> None:
        for number in range(1, 30):
            await opened.publish("s", str(number))

    publishing = asyncio.create_task(publish())
    found = []
    async with opened.follow("s") as following:
        async for message in following:
            found.append(message.text)
            if len(found) == 30:
                break
    await publishing
    assert found == [str(number) for number in range(30)]
    assert [each.text for each in await opened.read("s", 0, first, 5)] == found[1:6]


async def test_a_cancelled_wait_loses_no_message(opened):
    """The next one that iterates gets it (C3)."""
    following = opened.follow("s")
    waiting = asyncio.create_task(anext(following))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for number in range(3):
        await opened.publish("s", str(number))
    assert [(await anext(following)).text for _ in range(3)] == ["0", "1", "2"]
    await following.close()
    await following.close()
    with pytest.raises(StopAsyncIteration):
        await anext(following)


async def test_tasks_that_wait_at_once_get_each_message_once(opened):
    """What one read found is handed out once, whoever waited for it (C3)."""
    following = opened.follow("s")
    waiting = [asyncio.create_task(anext(following)) for _ in range(2)]
    async with asyncio.timeout(30):
        while following._polling is None:
            await asyncio.sleep(0)
        for text in ("a", "b"):
            await opened.publish("s", text)
        assert sorted(each.text for each in await asyncio.gather(*waiting)) == ["a", "b"]
    await following.close()


async def test_a_name_goes_on_behind_what_was_done(opened):
    """Its hold moves when it is closed, at the latest (L6)."""
    for number in range(4):
        await opened.publish("s", str(number))
    async with opened.follow("s", name="reader") as following:
        assert (await anext(following)).text == "0"
        await following.done(await anext(following))
    async with opened.follow("s", name="reader") as following:
        assert (await anext(following)).text == "2"


async def test_many_followers_keep_nobody_from_publishing(opened):
    """Each waits in threads of its own (L5)."""
    followers = [opened.follow("s") for _ in range(12)]
    waiting = [asyncio.create_task(anext(each)) for each in followers]
    await opened.publish("s", "a")
    for each, number in zip(waiting, count(), strict=False):
        assert (await each).text == "a", number
    for each in followers:
        await each.close()


async def test_what_cannot_be_followed_is_told_when_it_begins(opened):
    """And by every later use (DESIGN-LOG §12)."""
    following = opened.follow("none")
    for _ in range(2):
        with pytest.raises(sharedlog.NoSuchStream):
            await anext(following)
    await following.close()


async def test_a_wait_that_is_cancelled_as_its_message_comes_loses_nothing(opened):
    """In the same turn of the loop: the next one that iterates gets it (C3)."""
    async with opened.follow("s") as following:
        waiting = asyncio.ensure_future(anext(following))
        while following._polling is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        following._polling.add_done_callback(lambda _: waiting.cancel())
        await opened.publish("s", "1")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await asyncio.wait_for(anext(following), 30)).text == "1"


async def test_holds_are_listed_dropped_and_forgotten_and_logs_trimmed(opened):
    """As by threads (L6)."""
    for number in range(4):
        await opened.publish("s", f"{number}")
    async with opened.follow("s", name="me") as following:
        await following.done(await anext(following))
    found = await opened.holds("me")
    assert {each.name for each in found} == {"me"}
    assert (await opened.trim()).rows == 0
    assert len(await opened.drop_hold("me")) == len(found)
    with pytest.raises(sharedlog.TrimmedLog):
        await anext(opened.follow("s", name="me"))
    assert len(await opened.forget_hold("me")) == len(found)
