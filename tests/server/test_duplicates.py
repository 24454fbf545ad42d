"""Duplicates of running calls: bounded, never starving, always the one answer (DESIGN §4)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import rifl
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import DEADLINE_S, deadlines, until

_HOLD, _QUICK, _NOTHING = "/test.Held/Hold", "/test.Held/Quick", "/test.Held/Nothing"
_IN_PROGRESS = ("ABORTED", "IN_PROGRESS", "unknown")


class Held:
    """A server whose handlers wait until the test lets them go."""

    def __init__(self, kind, url, *, threads=4, bounds=None, **options):
        self.kind = kind
        self.runs = Counter()
        self.entered = defaultdict(threading.Event)
        self.released = defaultdict(threading.Event)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(32)
        nothing = rifl.MethodPolicy(unrecorded=frozenset({grpc.StatusCode.UNAVAILABLE.value[0]}))
        self.dedup = rifl.Deduplicator(
            url,
            methods={_NOTHING: nothing},
            bounds=rifl.Bounds(**{"max_wait_s": DEADLINE_S, **(bounds or {})}),
            **options,
        )
        if kind == "aio":

            async def hold(request, context):
                number = self._enter(request)
                # The release is a plain event: the loop must stay free.
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._pool, self.released[request].wait, DEADLINE_S)
                return b"%d:" % number + request

            async def quick(request, context):
                return b"%d:" % self._enter(request) + request

            async def nothing_once(request, context):
                reply = await hold(request, context)
                if reply.startswith(b"1:"):
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "nothing happened")
                return reply
        else:

            def hold(request, context):
                number = self._enter(request)
                self.released[request].wait(DEADLINE_S)
                return b"%d:" % number + request

            def quick(request, context):
                return b"%d:" % self._enter(request) + request

            def nothing_once(request, context):
                reply = hold(request, context)
                if reply.startswith(b"1:"):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "nothing happened")
                return reply

        methods = {"Hold": hold, "Quick": quick, "Nothing": nothing_once}
        self._serving = serve(
            kind, [generic("test.Held", methods)], dedup=self.dedup, threads=threads
        )
        self.served = self._serving.__enter__()

    def _enter(self, request):
        with self._lock:
            self.runs[request] += 1
            number = self.runs[request]
        self.entered[request].set()
        return number

    @property
    def waiters(self):
        """How many duplicates wait for calls that run."""
        return sum(len(attempt.waiters or ()) for attempt in self.dedup._store._table.running())

    @property
    def running(self):
        """How many attempts are not settled."""
        return self.dedup._store.running()

    def client(self):
        """Another client."""
        return RawClient(self.served.address)

    def close(self):
        """Let every handler go and stop."""
        for event in list(self.released.values()):
            event.set()
        self._serving.__exit__(None, None, None)
        self.dedup.close()
        self._pool.shutdown(wait=False)


@pytest.fixture
def held(tmp_path):
    """Makes servers, and stops them."""
    made = []

    def make(kind, url="memory:", **options):
        made.append(Held(kind, f"sqlite:///{tmp_path}/s.db" if url == "sqlite" else url, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_of_duplicates_runs_once_and_starves_nobody(held, kind, url):
    """Forty duplicates on four threads: one run; other clients' calls go on (§4.2)."""
    server = held(kind, url, threads=4)
    with server.client() as client, server.client() as other:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        burst = [client.future(_HOLD, b"x", 1, attempt=2 + n) for n in range(40)]
        for seq in range(1, 21):
            assert other.call(_QUICK, b"other", seq, first=seq).ok
        server.released[b"x"].set()
        assert read(first).response == b"1:x"
        answers = [read(call) for call in burst]
    for answer in answers:
        assert answer.response == b"1:x" or answer.refusal == _IN_PROGRESS
    assert server.runs[b"x"] == 1
    assert server.waiters == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_duplicate_waits_for_the_first_answer(held, kind):
    """A duplicate of a running call waits and gets its answer, marked replayed (§4.2)."""
    # gRPC tells nobody how large an aio server's pool is: there the bound is given.
    server = held(kind, threads=8, bounds={"max_waiters": 2})
    with server.client() as client:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        second = client.future(_HOLD, b"x", 1, attempt=2)
        until(lambda: server.waiters == 1, "the duplicate waits")
        server.released[b"x"].set()
        assert (read(first).response, read(first).outcome) == (b"1:x", "")
        assert (read(second).response, read(second).outcome) == (b"1:x", "replayed")


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_the_number_of_waiters_is_bounded(held, kind):
    """More duplicates than may wait are told IN_PROGRESS at once (§4.2)."""
    server = held(kind, threads=8, bounds={"max_waiters": 2, "max_aio_waiters": 2})
    with server.client() as client:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        waiting = [client.future(_HOLD, b"x", 1, attempt=2) for _ in range(2)]
        until(lambda: server.waiters == 2, "two wait")
        assert client.call(_HOLD, b"x", 1, attempt=3).refusal == _IN_PROGRESS
        server.released[b"x"].set()
        assert {read(call).response for call in (first, *waiting)} == {b"1:x"}
        again = client.call(_HOLD, b"x", 1, attempt=4)
        assert (again.response, again.outcome) == (b"1:x", "replayed")
    assert server.waiters == 0


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_waiter_answers_within_its_deadline(held, kind):
    """A duplicate whose call outlasts its deadline is told IN_PROGRESS before it (§3)."""
    server = held(kind, threads=8, bounds={"max_wait_s": 2 * DEADLINE_S})
    with server.client() as client:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        # A tenth of it is left for the answer.
        for timeout_s in deadlines(0.5):
            reply = client.call(_HOLD, b"x", 1, attempt=2, timeout=timeout_s)
            if reply.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                break
        assert reply.refusal == _IN_PROGRESS
        server.released[b"x"].set()
        assert read(first).ok
    assert server.waiters == 0


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_waiter_that_goes_away_is_forgotten(held, kind):
    """A duplicate whose caller cancels leaves no waiter and no thread behind (§4.2)."""
    server = held(kind, threads=4)
    with server.client() as client:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        for _ in range(5):
            second = client.future(_HOLD, b"x", 1, attempt=2)
            until(lambda: server.waiters == 1, "the duplicate waits")
            second.cancel()
            until(lambda: server.waiters == 0, "and is forgotten")
        server.released[b"x"].set()
        assert read(first).ok


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_after_an_unrecorded_end_one_waiter_runs(held, kind, url):
    """An unrecorded status wakes the waiters; exactly one of them runs (§4)."""
    server = held(kind, url, threads=16, bounds={"max_waiters": 8})
    with server.client() as client:
        first = client.future(_NOTHING, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        waiting = [client.future(_NOTHING, b"x", 1, attempt=2) for _ in range(6)]
        until(lambda: server.waiters == 6, "six wait")
        server.released[b"x"].set()
        ended = read(first)
        assert (ended.code.name, ended.outcome) == ("UNAVAILABLE", "not-executed")
        answers = [read(call) for call in waiting]
    assert {answer.response for answer in answers} == {b"2:x"}
    assert sorted(answer.outcome for answer in answers) == ["executed"] + ["replayed"] * 5
    assert server.runs[b"x"] == 2


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
@pytest.mark.parametrize("how", ["deadline", "cancel"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_outlives_its_caller(held, kind, how, url):
    """When the caller is gone the handler still runs to its end, and its answer stands (§4.6)."""
    server = held(kind, url, threads=4)
    with server.client() as client:
        if how == "cancel":
            seq, request = 1, b"x"
            first = client.future(_HOLD, request, seq)
            assert server.entered[request].wait(DEADLINE_S)
            first.cancel()
            until(first.done, "the caller is gone")
        else:
            for seq, timeout_s in enumerate(deadlines(), 1):
                request = b"%g" % timeout_s
                first = client.call(_HOLD, request, seq, timeout=timeout_s)
                assert first.code is grpc.StatusCode.DEADLINE_EXCEEDED
                if server.entered[request].is_set():
                    break
                # It ends at once, should it come yet.
                server.released[request].set()
        until(lambda: server.running == 1, "it alone runs")
        server.released[request].set()
        until(lambda: server.running == 0, "the attempt is settled")
        again = client.call(_HOLD, request, seq, attempt=2)
    assert (again.response, again.outcome) == (b"1:" + request, "replayed")
    assert server.runs[request] == 1


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_resolution_waits_for_a_running_call(held, kind):
    """Resolving a running call waits for its record (§4)."""
    server = held(kind, threads=8)
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        first = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        asked = pool.submit(client.resolve, 1)
        until(lambda: server.waiters == 1, "the resolution waits")
        server.released[b"x"].set()
        assert read(first).ok
        assert asked.result().record.response == b"1:x"


def test_two_hundred_clients_on_four_threads(held):
    """Two hundred clients at once on a pool of four: every call runs once."""
    server = held("sync", "memory:", threads=4)

    def one(number):
        with server.client() as client:
            payload = b"c%d" % number
            replies = [
                client.call(_QUICK, payload + b"-%d" % seq, seq, attempt=attempt)
                for seq in (1, 2)
                for attempt in (1, 2)
            ]
            return [reply.response for reply in replies], payload

    with ThreadPoolExecutor(32) as pool:
        for responses, payload in pool.map(one, range(200)):
            assert responses == [b"1:" + payload + b"-%d" % seq for seq in (1, 1, 2, 2)]
    assert set(server.runs.values()) == {1}
