"""Requests that travel together, and how often a call goes to Redis (DESIGN §6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rifl
import rifl.aio
from rifl._stores.redis.combining import AioRequestCombiner, RequestCombiner
from rifl._stores.shared.backend import BackendError, NotCarriedOut
from rifl.core._serving.policy import MethodPolicy
from tests.echo import METHOD, aio_served, served
from tests.helpers.waiting import DEADLINE_S, until

CALLS = 5


class Way:
    """What carries requests: held until the test lets it go, and noted."""

    def __init__(self) -> None:
        self.gone: list[list[Any]] = []
        self.free = threading.Event()
        self.passing = False

    def pass_one(self) -> None:
        """Let go what is on its way, and not what follows."""
        self.passing = True

    def one(self, request: Any, within_s: float | None) -> Any:
        return self.all([request], within_s)[0]

    def all(self, requests: Sequence[Any], within_s: float | None) -> list[Any]:
        self.gone.append(list(requests))
        until(lambda: self.free.is_set() or self.passing, "the test lets it go", DEADLINE_S)
        self.passing = False
        return [
            BackendError("lost") if request == "lost" else f"done {request}" for request in requests
        ]


def test_requests_of_threads_travel_together() -> None:
    """One goes at once; those that come meanwhile go after it, in one pipeline."""
    way = Way()
    together = RequestCombiner(way.one, way.all)
    found: dict[str, Any] = {}

    def ask(request: str) -> None:
        try:
            found[request] = together.ask(request)
        except BackendError as error:
            found[request] = error

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "a", "lost", "b")]
    threads[0].start()
    until(lambda: way.gone, "the first is on its way")
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(together._waiting) == 3, "the others wait")
    way.free.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [sorted(each) for each in way.gone] == [["first"], ["a", "b", "lost"]]
    assert (found["first"], found["a"], found["b"]) == ("done first", "done a", "done b")
    assert isinstance(found["lost"], BackendError)
    # The way is free again.
    assert together.ask("last") == "done last"


def test_the_way_is_free_after_an_error() -> None:
    """A request that raises lets the next one go."""

    def broken(request: Any, within_s: float | None) -> Any:
        raise BackendError("no connection")

    together = RequestCombiner(broken, Way().all)
    for _ in range(3):
        with pytest.raises(BackendError):
            together.ask("x")


def test_a_request_is_given_up_when_its_call_has_no_time_left() -> None:
    """Not sent if it waits for its turn; else its reply is lost, and others have theirs (§6)."""
    way = Way()
    together = RequestCombiner(way.one, way.all)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(together.ask, "first")
        until(lambda: way.gone, "the first is on its way")
        with pytest.raises(NotCarriedOut):
            together.ask("late", 0.0)
        batch = [pool.submit(together.ask, "leads")]
        until(lambda: len(together._waiting) == 1, "it waits, and goes first")
        batch.append(pool.submit(together.ask, "b"))
        until(lambda: len(together._waiting) == 2, "both wait")
        leading, other = together._waiting
        way.pass_one()
        until(lambda: len(way.gone) == 2, "they are on their way")
        # Who carries the others' requests stays; another has no reply.
        together._give_up(leading)
        with pytest.raises(BackendError, match="in the call's time"):
            together._give_up(other)
        way.free.set()
        assert [each.result(DEADLINE_S) for each in (first, *batch)] == [
            *("done first", "done leads", "done b")
        ]
    assert way.gone == [["first"], ["leads", "b"]]
    assert together.ask("last") == "done last"


async def test_requests_of_tasks_travel_together() -> None:
    """As with threads; who is cancelled while it waits has asked for nothing."""
    gone: list[list[Any]] = []
    free = asyncio.Event()

    async def carry(requests: Sequence[Any]) -> list[Any]:
        gone.append(list(requests))
        await free.wait()
        return [
            BackendError("lost") if request == "lost" else f"done {request}" for request in requests
        ]

    async def one(request: Any) -> Any:
        return (await carry([request]))[0]

    together = AioRequestCombiner(one, carry)
    tasks = [
        asyncio.create_task(together.ask(name)) for name in ("first", "a", "gone", "lost", "b")
    ]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.sleep(0)
    free.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert gone == [["first"], ["a", "lost", "b"]]
    assert [found[0], found[1], found[4]] == ["done first", "done a", "done b"]
    assert isinstance(found[2], asyncio.CancelledError)
    assert isinstance(found[3], BackendError)
    assert await together.ask("last") == "done last"


class Monitor:
    """What clients ask of a server, as it tells itself: scripts' own commands left out."""

    def __init__(self, server: Any) -> None:
        self._client = server.client()
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> Monitor:
        self._thread.start()
        assert self._begun.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self._client.close()

    def _run(self) -> None:
        with self._client.monitor() as monitor:
            self._begun.set()
            for told in monitor.listen():
                if told["client_type"] != "lua":
                    self.asked.append(told["command"])
                if "the end" in told["command"]:
                    return


@pytest.mark.parametrize(
    ("policy", "round_trips"),
    [
        (MethodPolicy(), 2),
        (MethodPolicy(kind="idempotent"), 2),
        (MethodPolicy(kind="idempotent", claim="never"), 1),
    ],
)
@pytest.mark.parametrize("flavor", ["sync", "aio"])
async def test_a_call_is_two_round_trips(
    own_server: Any, policy: MethodPolicy, round_trips: int, flavor: str
) -> None:
    """One claims and one records, whatever else happens in a call; or one does both (DESIGN §6)."""
    # No beat comes in between.
    url = own_server.url(beat_s=30, dead_after_s=120)
    dedup = rifl.Deduplicator(url, default=policy)

    async def calls(ask: Any) -> None:
        # The first ones load the scripts and connect.
        await ask()
        await ask()
        with Monitor(own_server) as monitor:
            for _ in range(CALLS):
                await ask()
            with own_server.client() as client:
                client.echo("the end")
        asked = [each for each in monitor.asked if each.startswith("EVALSHA")]
        assert len(asked) == round_trips * CALLS
        others = [each.split()[0] for each in monitor.asked if each not in asked]
        # What the test's own client says.
        assert set(others) <= {"ECHO", "HELLO", "CLIENT"}

    if flavor == "sync":
        with served(dedup) as target, rifl.connect(target) as channel:
            method = channel.unary_unary(METHOD)
            await calls(lambda: asyncio.to_thread(method, b"x", timeout=DEADLINE_S))
        dedup.close()
        return
    async with aio_served(dedup) as target, rifl.aio.connect(target) as aio_channel:
        aio_method = aio_channel.unary_unary(METHOD)

        async def ask() -> None:
            await aio_method(b"x", timeout=DEADLINE_S)

        await calls(ask)
    await dedup.aclose()


def test_an_atomic_call_is_five_round_trips(own_server: Any) -> None:
    """Claimed, watched, looked at, committed, and read back (docs/explanation/performance.md)."""
    with own_server.client() as books:

        def behavior(request: bytes, context: Any) -> bytes:
            with books.pipeline() as transaction:
                rifl.record(context, request, transaction)
                transaction.incr("balance")
                transaction.execute()
            return request

        url = own_server.url(beat_s=30, dead_after_s=120)
        with (
            rifl.Deduplicator(url, default="atomic") as dedup,
            served(dedup, behavior) as target,
            rifl.connect(target) as channel,
        ):
            method = channel.unary_unary(METHOD)
            # The first one loads scripts, connects, and tries the connection's rights.
            method(b"x", timeout=DEADLINE_S)
            with Monitor(own_server) as monitor:
                method(b"x", timeout=DEADLINE_S)
                books.echo("the end")
    asked = [each.split()[0] for each in monitor.asked]
    # What begins with MULTI travels with EXEC.
    together = ["MULTI", "EVAL", "INCRBY", "EXEC"]
    assert asked == ["EVALSHA", "WATCH", "GET", *together, "EVALSHA", "ECHO"]
