"""Channels of a process that renew each other's leases (DESIGN §5)."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lease_server
import rifl
from lease_server import Acknowledgements
from lease_server._authority import Beat
from rifl._client.answers import FinalStatus
from rifl._client.grpc_channels import likeness
from rifl._client.lease_requests import (
    REPLIES,
    LeaseRequest,
    failed,
    next_request,
    replied,
    unsent,
)
from rifl._client.settings import Settings
from rifl._client.shared_renewals import Renewals, settle
from rifl._client.state import ClientState
from rifl._leases.requests import GrantTerms, LeaseRequests
from rifl._leases.service import status_of
from rifl.core._calling import client_session
from rifl.core._calling.client_session import LeaseStep
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._shared.call import ranges_from_pairs
from rifl.core._shared.errors import RiflError
from rifl.core._shared.identity import ALSO_AT_MOST
from tests.client.conftest import FAST, Caller, Connect
from tests.client.protocol_server import ProtocolServer

TERM_S = 60.0
LOST = FinalStatus(grpc.StatusCode.UNAVAILABLE, "lost")


class Clock:
    """Seconds that pass when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Client(ClientState):
    """A client whose keeper is the test; ``looked`` counts how often it was woken."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Settings(retry=FAST))
        self.now = clock  # type: ignore[method-assign,assignment]
        # No renewal is early by chance.
        self.jitter = lambda: 0.0  # type: ignore[method-assign]
        self.looked = 0

    def look_at_lease(self) -> None:
        self.looked += 1

    @property
    def client_id(self) -> int:
        return self.session.lease.client_id if self.session.lease is not None else 0


class World:
    """Clients of one process, and the server that grants and renews their leases."""

    def __init__(self, clients: int = 3) -> None:
        self.clock = Clock()
        self.storage = lease_server.MemoryLeaseStorage()
        self.authority = lease_server.LeaseAuthority(
            self.storage, term_s=TERM_S, clock=self.clock, wall_clock=self.clock
        )
        self.requests = LeaseRequests(self.authority, GrantTerms(deduplicated=["*"]))
        self.renewals = Renewals()
        self.clients = [self.client() for _ in range(clients)]

    def client(self) -> Client:
        """One more, with a lease."""
        client = Client(self.clock)
        client.renewals = self.renewals
        self.renewals.join(client)
        self.granted(client)
        return client

    def granted(self, client: Client) -> None:
        reply = REPLIES["Grant"].FromString(self.requests.grant(b"", b""))
        client.granted(reply, self.clock.now)

    def due(self, client: Client, most: int = ALSO_AT_MOST) -> LeaseRequest:
        """The request that is due, with ``most`` companions, or it fails."""
        with pytest.MonkeyPatch.context() as bounded:
            bounded.setattr(client_session, "ALSO_AT_MOST", most)
            request = next_request(client)
        assert isinstance(request, LeaseRequest), request
        return request

    def renewed(self, request: LeaseRequest) -> Any:
        """Have the server renew; return what it answers, None for an error."""
        try:
            raw = self.requests.renew(request.message.SerializeToString(), b"")
        except RiflError:
            return None
        return REPLIES["Renew"].FromString(raw)

    def answer(self, client: Client, request: LeaseRequest) -> None:
        """Have the server answer."""
        try:
            reply = self.requests.renew(request.message.SerializeToString(), b"")
        except RiflError as error:
            status = status_of(error)
            failed(
                client,
                request,
                FinalStatus(status.code, status.details, (), status.trailing_metadata),
            )
        else:
            replied(client, request, REPLIES["Renew"].FromString(reply))

    def ids(self, request: LeaseRequest) -> list[int]:
        return [request.message.client_id, *(each.client_id for each in request.message.also)]


def test_one_request_renews_all_that_are_due_soon() -> None:
    """Who is due first takes the others along; they wait, and are renewed with it (§5)."""
    world = World()
    first, second, third = world.clients
    world.clock.now += TERM_S / 3
    request = world.due(first)
    assert world.ids(request) == [each.client_id for each in world.clients]
    # Meanwhile they send nothing, and nobody else takes them along.
    assert next_request(second) == world.clock.now + request.timeout_s
    world.answer(first, request)
    for client in world.clients:
        lease = client.session.lease
        assert lease is not None
        assert lease.expires_at == world.clock.now + TERM_S
        assert world.authority.alive(lease.client_id)
        assert next_request(client) == world.clock.now + TERM_S / 3
    assert third.looked == 0


def _told(message: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return what a renewal acknowledges."""
    first = message.first_incomplete or 1
    return first, ranges_from_pairs(first, message.completed)


def _issued(client: Client, now: float) -> IssuedCall:
    call = client.session.begin((1, 2), now)
    assert call is not None
    return call


def test_a_renewal_acknowledges_what_a_header_would() -> None:
    """Not what is incomplete, lingers or is unresolved, until their time is over (§4, §5)."""
    world = World(1)
    (client,) = world.clients
    session, now = client.session, world.clock.now
    calls = [_issued(client, now) for _ in range(9)]
    for call in (calls[0], calls[3], calls[4], calls[8]):
        session.complete(call)
    session.abandon(calls[5], now)
    world.clock.now += TERM_S / 3
    session.linger(calls[6], world.clock.now - 2)
    session.linger(calls[1], world.clock.now)
    told = _told(world.due(client, most=0).message)
    assert told == (2, [(4, 5), (7, 7), (9, 9)])
    headed = _issued(client, world.clock.now)
    session.next_attempt(headed)
    assert told == (headed.first_incomplete, headed.completed)
    # The client makes no call any more: their time ends all the same.
    session.complete(headed)
    for call in (calls[2], calls[7]):
        session.complete(call)
    world.clock.now += TERM_S / 3
    assert _told(world.due(client, most=0).message) == (6, [(7, 10)])
    world.clock.now += TERM_S / 3
    assert _told(world.due(client, most=0).message) == (11, [])
    assert session.idle


def test_a_client_without_answers_and_a_session_acknowledge_nothing() -> None:
    """Keys are freed otherwise, and nothing is said of what is not (§4, §5)."""
    world = World(1)
    (client,) = world.clients
    world.clock.now += TERM_S / 3
    assert _told(world.due(client, most=0).message) == (1, [])
    assert client.session.lease is not None
    client.session.complete(_issued(client, world.clock.now))
    assert client.session.renewal_acknowledges(client.session.lease, 0.0, 64) == (2, [])
    client.session.named = True
    assert client.session.renewal_acknowledges(client.session.lease, 0.0, 64) == (1, [])


def test_each_lease_of_a_renewal_acknowledges_its_own() -> None:
    """And the server applies each to its own client (§5)."""
    world = World()
    told: dict[int, Acknowledgements] = {}
    world.storage.acknowledge = told.__setitem__  # type: ignore[method-assign,assignment]
    for count, client in enumerate(world.clients):
        for call in [_issued(client, world.clock.now) for _ in range(count)]:
            client.session.complete(call)
    world.clock.now += TERM_S / 3
    request = world.due(world.clients[0])
    world.answer(world.clients[0], request)
    first, second, third = (client.client_id for client in world.clients)
    assert told == {second: Acknowledgements(2, []), third: Acknowledgements(3, [])}
    assert first not in told


def test_many_ranges_of_many_leases_are_told_in_turn() -> None:
    """A request stays below what a server takes; each lease has an equal part (§4, §9)."""
    world = World(ALSO_AT_MOST + 1)
    trackers: dict[int, ResultTracker] = {}

    def acknowledge(client_id: int, told: Acknowledgements) -> None:
        trackers[client_id].acknowledge(*told)

    world.storage.acknowledge = acknowledge  # type: ignore[method-assign]
    for client in world.clients:
        trackers[client.client_id] = ResultTracker()
        for call in [_issued(client, world.clock.now) for _ in range(24)][1::2]:
            client.session.complete(call)
    for _ in range(4):
        world.clock.now += TERM_S / 3
        request = world.due(world.clients[0])
        assert len(request.companions) == ALSO_AT_MOST
        world.answer(world.clients[0], request)
    assert all(
        tracker.completed_ranges() == [(seq, seq) for seq in range(2, 25, 2)]
        for tracker in trackers.values()
    )


def test_channels_go_on_together_though_each_is_early_by_chance() -> None:
    """Jitter is less than what a renewal may come early along with another one (§5)."""
    world = World(0)
    dice = Random(1)
    for _ in range(20):
        client = Client(world.clock)
        client.jitter = dice.random  # type: ignore[method-assign]
        client.renewals = world.renewals
        world.renewals.join(client)
        world.granted(client)
        world.clients.append(client)
    sent: list[float] = []
    begin = world.clock.now
    while world.clock.now < begin + 10 * TERM_S:
        times = []
        for client in world.clients:
            while isinstance(due := next_request(client), LeaseRequest):
                sent.append(world.clock.now)
                world.answer(client, due)
            assert due is not None
            times.append(due)
        world.clock.now = min(times)
    # Three a term, each a little early.
    assert sum(at > begin + TERM_S for at in sent) <= 9 * 3 * 1.3


def test_who_was_renewed_of_late_is_left_out() -> None:
    """Only leases in the second half of the time between two renewals go along (§5)."""
    world = World(1)
    world.clock.now += TERM_S / 6 + 1
    late = world.client()
    world.clock.now += TERM_S / 6 - 1
    assert world.ids(world.due(world.clients[0])) == [world.clients[0].client_id]
    world.clock.now += 1
    assert next_request(late) == pytest.approx(world.clock.now + TERM_S / 6)


def test_a_verdict_that_is_no_yes_counts_for_nothing() -> None:
    """A refused companion asks for itself, by its own channel, and only then gives up (§5)."""
    world = World()
    first, gone, fine = world.clients
    lease = gone.session.lease
    assert lease is not None
    world.authority.release(lease.client_id, lease.token)
    world.clock.now += TERM_S / 3
    world.answer(first, world.due(first))
    assert gone.session.lease is lease
    assert gone.looked == 1
    # The others were renewed all the same.
    assert fine.session.usable(world.clock.now + TERM_S - 1)
    world.clock.now += 1
    alone = world.due(gone)
    assert world.ids(alone) == [lease.client_id]
    world.answer(gone, alone)
    assert gone.session.lease is None


def test_the_first_one_is_refused_by_itself() -> None:
    """Where the sender's own lease is over its companions' are renewed all the same (§5)."""
    world = World()
    first, second, third = world.clients
    lease = first.session.lease
    assert lease is not None
    world.authority.release(lease.client_id, lease.token)
    world.clock.now += TERM_S / 3
    world.answer(first, world.due(first))
    assert first.session.lease is None
    assert second.session.usable(world.clock.now + TERM_S - 1)
    assert third.session.usable(world.clock.now + TERM_S - 1)


@pytest.mark.parametrize("how", ["failed", "unsent"])
def test_a_request_that_is_lost_holds_nobody_up(how: str) -> None:
    """After an error, or with a channel that closes, companions renew for themselves (§5)."""
    world = World()
    first, second, third = world.clients
    world.clock.now += TERM_S / 3
    request = world.due(first)
    if how == "failed":
        failed(first, request, LOST)
    else:
        first.close_waiters()
        unsent(request)
    world.clock.now += 1
    # Nor does anybody hang on another's channel until its own has shown to be good.
    for client in (second, third):
        assert client.looked == 1
        alone = world.due(client)
        assert world.ids(alone) == [client.client_id]
        world.answer(client, alone)
    world.clock.now += TERM_S / 3
    together = world.due(second)
    assert world.ids(together)[0] == second.client_id
    assert third.client_id in world.ids(together)
    assert (first.client_id in world.ids(together)) is False


def test_who_asks_already_is_not_taken_along() -> None:
    """A lease whose renewal is on its way needs no second one (§5)."""
    world = World(2)
    first, second = world.clients
    world.clock.now += TERM_S / 3
    assert world.ids(world.due(first, most=0)) == [first.client_id]
    assert world.ids(world.due(second)) == [second.client_id]


def test_a_channel_that_fails_takes_nobody_along() -> None:
    """No lease hangs on a channel whose last request failed, until one succeeded (§5)."""
    world = World(2)
    first, second = world.clients
    world.clock.now += TERM_S / 3
    failed(first, world.due(first, most=0), LOST)
    # A quarter of what is left.
    world.clock.now += TERM_S / 6
    again = world.due(first)
    assert world.ids(again) == [first.client_id]
    world.answer(first, again)
    world.clock.now += TERM_S / 3
    assert world.ids(world.due(first)) == [first.client_id, second.client_id]


def test_a_request_that_is_never_told_of_ends_by_itself() -> None:
    """Companions wait no longer than the request may take (§5)."""
    world = World()
    first, second, _ = world.clients
    world.clock.now += TERM_S / 3
    request = world.due(first)
    world.clock.now += request.timeout_s
    assert world.ids(world.due(second))[0] == second.client_id


def test_a_companion_that_closes_meanwhile_stays_closed() -> None:
    """An answer that comes for a closed channel, or a collected one, is nobody's (§5)."""
    world = World()
    first, closing = world.clients[:2]
    world.clock.now += TERM_S / 3
    request = world.due(first)
    release = closing.close_waiters()
    assert release is not None
    world.authority.release(release.client_id, release.token)
    del world.clients[2]
    gc.collect()
    world.answer(first, request)
    assert closing.lease is None
    assert closing.looked == 0
    assert len(world.renewals._members) == 2


def test_a_companion_that_is_not_answered_asks_for_itself() -> None:
    """A server may answer the first one only: nothing is known of the others' leases (§5)."""
    world = World(2)
    first, second = world.clients
    world.clock.now += TERM_S / 3
    request = world.due(first)
    reply = REPLIES["Renew"](client_id=first.client_id, term_ms=60_000)
    replied(first, request, reply)
    assert second.looked == 1
    world.clock.now += 1
    alone = world.due(second)
    assert world.ids(alone) == [second.client_id]
    world.answer(second, alone)
    world.clock.now += TERM_S / 3
    assert world.ids(world.due(first)) == [first.client_id, second.client_id]


def test_an_answer_about_another_lease_counts_for_nothing() -> None:
    """Answers are told by their place and by their id (§5)."""
    world = World(2)
    first, second = world.clients
    lease = second.session.lease
    assert lease is not None
    before = lease.expires_at
    world.clock.now += TERM_S / 3
    request = world.due(first)
    wrong = REPLIES["Renew"](client_id=first.client_id, term_ms=60_000)
    settle(request.companions, [wrong, wrong, wrong], world.clock.now)
    assert lease.expires_at == before
    assert second.looked == 1


def test_a_rotated_secret_reaches_companions() -> None:
    """Each lease gets its own new token (§5)."""
    world = World(2)
    first, second = world.clients
    tokens = [each.session.lease.token for each in world.clients if each.session.lease]
    world.authority.rotate_secret()
    world.clock.now += TERM_S / 3
    world.answer(first, world.due(first))
    world.clock.now += TERM_S / 3
    world.authority.expire()
    world.answer(first, world.due(first))
    for client, old in zip((first, second), tokens, strict=True):
        lease = client.session.lease
        assert lease is not None
        assert lease.token != old
        world.authority.check(lease.client_id, lease.token)


def test_leases_of_another_store_stay_apart() -> None:
    """Two stores behind one address: nobody renews the other's leases (§5)."""
    world = World(1)
    other = World(1)
    stranger = other.clients[0]
    world.renewals.join(stranger)
    world.clock.now += TERM_S / 3
    other.clock.now += TERM_S / 3
    assert world.ids(world.due(world.clients[0])) == [world.clients[0].client_id]


def test_a_request_has_no_more_than_the_server_takes() -> None:
    """Who has no place in one request sends the next (§5)."""
    world = World(ALSO_AT_MOST + 3)
    world.clock.now += TERM_S / 3
    sent = 0
    for client in world.clients:
        request = next_request(client)
        if isinstance(request, LeaseRequest):
            sent += 1
            assert len(request.message.also) <= ALSO_AT_MOST
            world.answer(client, request)
    assert sent == 2
    assert all(each.session.usable(world.clock.now + TERM_S - 1) for each in world.clients)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["answer", "lose the request", "lose the answer", "late", "release"]),
        st.integers(1, 25),
    ),
    max_size=60,
)


@given(STEPS)
def test_nobody_believes_in_a_lease_that_is_over(steps: list[tuple[int, str, int]]) -> None:
    """Whatever is lost or late, a lease that its client may use is one that the server holds.

    And who can reach the server keeps its lease: DESIGN §5, invariants 5 and 6 of the session.
    """
    world = World(4)
    late: list[Callable[[], None]] = []
    released: set[int] = set()
    for which, what, seconds in steps:
        client = world.clients[which]
        if what == "release":
            lease = client.session.lease
            if lease is not None:
                released.add(lease.client_id)
                world.authority.release(lease.client_id, lease.token)
                client.lease_lost(lease, "given back")
        world.clock.now += seconds
        request = next_request(client)
        if isinstance(request, LeaseRequest) and request.lease is not None:
            if what in ("answer", "release"):
                world.answer(client, request)
            elif what == "lose the request":
                failed(client, request, LOST)
            elif what == "lose the answer":
                world.renewed(request)
                failed(client, request, LOST)
            elif (reply := world.renewed(request)) is not None:
                late.append(functools.partial(replied, client, request, reply))
        while late and seconds % 2:
            late.pop()()
        for each in world.clients:
            if each.session.usable(world.clock.now):
                assert world.authority.alive(each.client_id) or each.client_id in released
        # Nobody waits longer than a request may take.
        for each in world.clients:
            step, at = each.lease_step()
            if step is LeaseStep.WAIT and at is not None:
                assert at <= world.clock.now + TERM_S / 3 + 1e-6


def test_channels_are_alike_by_what_they_are_given() -> None:
    """Equal target, options and compression, one credentials object, nothing around gRPC's."""
    credentials = grpc.ssl_channel_credentials()
    other = grpc.ssl_channel_credentials()
    options = (("grpc.enable_retries", 0),)
    alike = likeness(grpc, "a:1", credentials, options, None)
    assert alike is not None
    assert alike == likeness(grpc, ["a:1"], credentials, list(options), None)
    for given_ in (
        (grpc, "a:2", credentials, options, None),
        (grpc, "a:1", other, options, None),
        (grpc, "a:1", None, options, None),
        (grpc, "a:1", credentials, (), None),
        (grpc, "a:1", credentials, options, grpc.Compression.Gzip),
        (grpc.aio, "a:1", credentials, options, None),
    ):
        assert likeness(*given_) != alike
    assert likeness(grpc, "a:1,b:1", credentials, options, None) is None
    assert likeness(grpc, "a:1", credentials, (("x", []),), None) is None


def test_a_channel_that_somebody_wrapped_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for gRPC's function may add to calls whose they are."""
    original = grpc.insecure_channel

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(grpc, "insecure_channel", wrapped)
    assert likeness(grpc, "a:1", None, (), None) is None


# In a process of its own: gRPC's threads of other tests must not be there at the fork.
_FORK = """
import os
from tests.client.test_shared_renewals import World, Client
from rifl._client.shared_renewals import share_renewals
world = World(2)
mine = share_renewals(world.clients[0], "alike")
with world.clients[1].lock:
    child = os.fork()
if child == 0:
    fresh = share_renewals(Client(world.clock), "alike")
    os._exit(0 if fresh is not mine else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), share_renewals(world.clients[1], "alike") is mine)
"""


def test_a_forked_child_shares_with_none_of_its_parent() -> None:
    """A child's channels begin anew, and take no lock of the parent's (§5)."""
    forked = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert forked.stdout == "0 True\n", forked.stderr


class Counting(lease_server.LeaseAuthority):
    """Notes whose leases were renewed together."""

    def _begin(self) -> None:
        super()._begin()
        self.condition = threading.Condition()
        self.together: list[set[int]] = []

    def heartbeats(self, beats: Sequence[Beat], peer: bytes = b"") -> list[bytes | RiflError]:
        found = super().heartbeats(beats, peer)
        with self.condition:
            self.together.append({beat.client_id for beat in beats})
            self.condition.notify_all()
        return found

    def wait_for(self, ids: set[int]) -> None:
        """Wait until all of these were renewed by one request."""
        with self.condition:
            assert self.condition.wait_for(
                lambda: any(ids <= each for each in self.together), timeout=30
            )


@pytest.fixture
def counting() -> Iterator[tuple[Counting, str]]:
    # By a clock that stands still: what the machine does meanwhile ends no lease.
    authority = Counting(lease_server.MemoryLeaseStorage(), term_s=1.5, clock=lambda: 0.0)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    rifl.add_lease_service(server, authority, deduplicated=["*"])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield authority, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_channels_of_threads_share_a_renewal(counting: tuple[Counting, str]) -> None:
    """Sync channels that were opened alike are renewed by one request, over gRPC."""
    authority, target = counting
    with rifl.connect(target) as one, rifl.connect(target) as two:
        apart = rifl.connect(target, options=[("grpc.use_local_subchannel_pool", 1)])
        with apart:
            ids = [each.session.open() for each in (one, two, apart)]
            authority.wait_for({ids[0], ids[1]})
            assert not any(ids[2] in each for each in authority.together)


def test_channels_of_a_loop_share_a_renewal(counting: tuple[Counting, str]) -> None:
    """Aio channels of one loop are renewed by one request; another loop's by its own."""
    authority, target = counting
    callers = [Caller("aio", target), Caller("aio", target)]
    first, other = callers
    try:

        async def connect() -> Any:
            return rifl.aio.connect(target)

        second = first.on_loop(connect())
        ids = [
            first.do(first.channel.session.open),
            first.do(second.session.open),
            other.do(other.channel.session.open),
        ]
        authority.wait_for({ids[0], ids[1]})
        assert not any(ids[2] in each for each in authority.together)
        first.on_loop(second.close())
    finally:
        for caller in callers:
            caller.close()


def test_an_earlier_server_renews_each(connect: Connect) -> None:
    """Over gRPC, where the server has never heard of companions (docs/how-to/deploying.md)."""
    with ProtocolServer(term_s=1.5) as server:
        ids = set()
        for caller in (connect(server.target), connect(server.target)):
            ids.add(caller.do(caller.channel.session.open))
        server.wait_for(lambda: ids <= set(server.renewals), timeout=30)


def test_a_renewal_whose_stream_ended_as_it_was_written_goes_singly_and_soon() -> None:
    """gRPC tells INTERNAL then, whatever the server said: unary calls renew as well (DESIGN §5)."""
    world = World(1)
    (client,) = world.clients
    lease = client.session.lease
    assert lease is not None
    lease.streams = True
    world.clock.now += TERM_S / 2
    request = world.due(client)
    assert request.streamed
    failed(client, request, FinalStatus(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    again = world.due(client)
    assert not again.streamed
    world.answer(client, again)
    assert lease.expires_at == world.clock.now + TERM_S
