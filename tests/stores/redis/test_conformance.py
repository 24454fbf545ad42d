"""The Redis store through the conformance suite (DESIGN §6)."""

from __future__ import annotations

import math

import pytest

from lease_server import open_authority
from rifl._stores import open_store
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired
from tests.stores import conformance
from tests.stores.conformance import FIRST, TERM_S, StoreConformance, call


class SharedOpened(conformance.Opened):
    """A replica over the store. Telling it the time moves the leases in the store."""

    def __init__(self, place, *, window=8, now=0.0, codec=None):
        self._now = now
        self.store = open_store(place.url, codec=codec)
        self.authority = open_authority(self.store.leases, term_s=TERM_S, id_block=4)
        self.store.bind(
            self.authority,
            MethodPolicies({}, "plain"),
            clock=lambda: 0.0,
            bounds=Bounds(window=window),
        )

    @property
    def now(self):
        """The time that was told."""
        return self._now

    @now.setter
    def now(self, value):
        backend = self.store._redis
        redis, passed_ms = backend.clients.blocking, int((value - self._now) * 1000)
        for member in redis.zrange(backend.key("due"), 0, -1):
            redis.zincrby(backend.key("due"), -passed_ms, member)
            redis.hincrby(backend.base(int(member)) + "client", "due", -passed_ms)
        # And this replica looked on all the while.
        watch = self.store.leases._watch
        self.store.leases._watch.saw(self.store.leases._server_run(), TERM_S)
        watch._since = -math.inf
        self._now = value

    def drop(self):
        """Sweep; the ids that went."""
        before = set(self.store.leases.known_clients())
        self.authority.expire()
        return sorted(before - set(self.store.leases.known_clients()))


class TestRedis(StoreConformance):
    """``redis://``, with leases that live in the store."""

    @pytest.fixture(autouse=True)
    def _shared(self, monkeypatch):
        monkeypatch.setattr(conformance, "Opened", SharedOpened)

    @pytest.fixture
    def url(self, url):
        """Return the URL of a store of its own, in whose time a busy machine does anything."""
        return url.replace("dead_after_s=0.6", "dead_after_s=60") + "&timeout_s=60"

    @pytest.fixture
    def place(self, url):
        """A store of its own on the run's Redis."""

        class Somewhere:
            durable = True

        Somewhere.url = url
        return Somewhere

    def test_the_token_verified_last_is_kept(self, opened):
        """No token is kept: every one is verified, which is safe (DESIGN §3)."""
        client = opened.client()
        opened.complete(call(client, 1))
        assert opened.store.token(client) == b""

    def test_a_client_that_was_granted_is_known_after_a_restart(self, place):
        """Its grant is in the store: a client stays known to other replicas (DESIGN §5)."""
        before = SharedOpened(place)
        client = before.client()
        before.close()
        after = SharedOpened(place)
        assert after.claim(call(client, 1)).verdict is Verdict.NEW
        after.close()

    def test_an_expired_client_is_gone_with_its_records(self, opened):
        """Expiry removes the records; the id is unknown for ever (DESIGN §5)."""
        client = opened.client()
        opened.complete(call(client, 1))
        opened.now = TERM_S * 2
        assert opened.drop() == [client]
        with pytest.raises(LeaseExpired):
            opened.claim(call(client, 1))

    def test_a_call_before_the_sweep_renews(self, opened):
        """A lease ends with its row, not before: late is safe, early is not (DESIGN §5)."""
        client = opened.client()
        opened.complete(call(client, 1))
        opened.now = TERM_S * 2
        assert opened.answer(call(client, 1)) == FIRST
        assert opened.drop() == []
