"""Sequences of requests to a shared store, drawn from a seed (see ``test_shared_data``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from lease_server._holders import LeaseBounds
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import Acknowledgements
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    CountBeat,
    Finish,
    Finished,
    FinishUnclaimed,
    Look,
    LookAtClient,
    RecordUnclaimed,
    TakeBack,
)
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.completed_set import CompletedSet
from rifl.core._shared.errors import RiflError
from tests.chaos.shared_stores import OWNERS, Subject

__all__ = ["Sequence", "Step", "taken"]

PEER = b"peer"
# A renewal may be written late, by a quarter of a term: ages are far from that.
TERM_S = 100_000.0
RETENTION_S = 60.0
AGES_S = (1.5, 200.0, 0.45 * TERM_S, 0.45 * TERM_S, 0.45 * TERM_S, 2 * TERM_S)
LOST = b"lost"
UNIX_S = 1_800_000_000.0


class Step(NamedTuple):
    """One step: what it is called, and what it does to each subject."""

    text: str
    take: Callable[[Subject], Any]


class Sequence:
    """Draws steps, each from what the ones before have left.

    ``unclaimed``: some calls are recorded that nobody claimed; ``commits``: also by commits of
    handlers' transactions.
    """

    def __init__(self, random: Random, *, unclaimed: bool = False, commits: bool = False) -> None:
        self.random = random
        self.unclaimed = unclaimed
        self.commits = commits
        self.tokens = itertools.count(1)
        # Every claim that was made, and the tokens that were seen running.
        self.claims: list[Claim] = []
        self.ids = itertools.count(1)
        self.clients = [next(self.ids), next(self.ids)]
        self.sessions: dict[str, int] = {}
        self.gone: set[str] = set()
        # Whether a replica left since keys were last looked at: that may be noticed late.
        self.left = False

    def begin(self) -> list[Step]:
        # The leases are watched for a term, so that what is due is due.
        steps = [self._sweep(), *(self._age(0.45 * TERM_S) for _ in range(3))]
        steps += [self._beat(owner, leaving=False) for owner in OWNERS]
        steps += [self._grant(client_id) for client_id in self.clients]
        steps += [self._open(name) for name in ("s1", "s2")]
        return steps

    def next(self) -> Step:
        random = self.random
        kinds = (
            (30, self._claim),
            (8, self._again),
            (8, self._take_over),
            (22, self._finish),
            (8, self._end),
            (5, self._several),
            (30 * self.unclaimed, self._record_unclaimed),
            (3, lambda: self._beat(random.choice(OWNERS), leaving=random.random() < 0.4)),
            (3, lambda: self._lease(random.choice(self.clients))),
            (3, lambda: self._look(random.choice(self.clients))),
            (2, lambda: self._grant(self._fresh())),
            (2, lambda: self._open(random.choice(("s1", "s2", "s3")))),
            (2, lambda: self._close(random.choice(("s1", "s2", "s4")))),
            (6, lambda: self._age(random.choice(AGES_S))),
            (4, self._sweep),
            (4, self._expire),
        )
        (draw,) = random.choices([draw for _, draw in kinds], [weight for weight, _ in kinds])
        return draw()

    # -- requests ------------------------------------------------------------------------

    def _claim(self) -> Step:
        return self._asked(self._new_claim())

    def _new_claim(self) -> Claim:
        random = self.random
        token = b"%032x" % next(self.tokens)
        client_id = random.choice([*self.clients, *self.sessions.values(), -7, -8, 99])
        seq, key = None, None
        first, completed = 1, []
        if client_id < 0 or random.random() < 0.35:
            key = random.choice((b"k1", b"k2", b"k3", b"key 4"))
        else:
            seq = random.randint(1, 8)
            first = random.randint(1, seq) if random.random() < 0.4 else 1
            if random.random() < 0.2:
                low = seq + random.randint(1, 2)
                completed = [(low, low + random.randint(0, 1))]
        fingerprint = random.choice((b"f1", b"f1", b"f1", b"f1", b"f1", b"f2", None))
        call = Call(client_id, b"", seq, key, first, completed, 1, fingerprint, "/a.B/C")
        return Claim(
            call,
            random.choice((Kind.PLAIN, Kind.IDEMPOTENT, Kind.ATOMIC)),
            token,
            random.choice(OWNERS),
            random.random() < 0.05,
            random.choice((2, 3, 64)),
            random.choice((2, 64)),
            random.choice((12, 1000)),
            retention_s=self._retention_s(client_id, key),
            until_s=random.choice((None, None, 1000.0, 1000.0, -10.0)),
        )

    def _retention_s(self, client_id: int, key: bytes | None) -> float | None:
        if key is None:
            return None
        return RETENTION_S if client_id < 0 else self.random.choice((None, RETENTION_S))

    def _again(self) -> Step:
        """As if the reply had been lost."""
        return self._asked(self._known() or self._new_claim())

    def _take_over(self) -> Step:
        known = self._known()
        if known is None:
            return self._claim()
        lost = self.random.choice((b"", LOST))
        wanted = known._replace(
            token=b"%032x" % next(self.tokens),
            owner=self.random.choice(OWNERS),
            refusing=self.random.random() < 0.1,
            until_s=None,
            take_over=known.token,
            lost=lost,
        )
        return self._asked(wanted)

    def _finish(self) -> Step:
        known = self._known()
        if known is None:
            return self._claim()
        record = self.random.choice((b"record of " + known.token[-2:], b"same"))
        call = known.call
        if self.random.random() < 0.1:
            call = Call(
                call.client_id, b"", call.seq, call.key, fingerprint=b"f3", method=call.method
            )
        return self._asked(Finish(call, known.token, record))

    def _record_unclaimed(self) -> Step:
        """Of a call of its own, or of one that is claimed, recorded or acknowledged."""
        claim = self._new_claim()
        known = self._known()
        if known is not None and self.random.random() < 0.3:
            claim = claim._replace(call=known.call)
        if claim.call.key is not None:
            return self._claim()
        self.claims.append(claim)
        record = b"record of " + claim.token[-2:]
        if self.random.random() < 0.4 or not self.commits:
            return self._asked(
                FinishUnclaimed(claim.call, claim.token, claim.owner, record, claim.window)
            )
        request = RecordUnclaimed(claim.call, claim.token, claim.owner, record, claim.window)
        return Step(_text(request), lambda subject: subject.commit(request))

    def _end(self) -> Step:
        known = self._known()
        if known is None:
            return self._claim()
        return self._asked(self.random.choice((Abandon, Look, TakeBack))(known.call, known.token))

    def _several(self) -> Step:
        """Many requests of one client's in one go, as a batch's items are."""
        first = self._new_claim()
        requests: list[Any] = [first]
        for _ in range(self.random.randint(1, 8)):
            other = self._new_claim()
            if other.call.client_id == first.call.client_id:
                # All the rest is its method's.
                requests.append(first._replace(call=other.call, token=other.token))
        self.claims += requests

        def take(subject: Subject) -> list[Any]:
            timely = [_timely(subject, request) for request in requests]
            return [_plain(reply) for reply in subject.backends[first.owner].ask_all(timely)]

        return Step(" and ".join(map(_text, requests)), take)

    def _asked(self, request: Any) -> Step:
        owner = "a"
        if isinstance(request, Claim):
            self.claims.append(request)
            owner = request.owner
        return Step(
            _text(request),
            lambda subject: _plain(subject.backends[owner].ask(_timely(subject, request))),
        )

    def _known(self) -> Claim | None:
        # Mostly what was not long ago.
        if not self.claims:
            return None
        return self.random.choice(self.claims[-6:] if self.random.random() < 0.7 else self.claims)

    def _beat(self, owner: str, *, leaving: bool) -> Step:
        self.left = self.left or leaving
        # Who left beats no more, but here, where its count begins anew.
        if leaving:
            self.gone.add(owner)
        judged = self.random.choice((None, *OWNERS))
        if leaving or judged == owner or judged in self.gone:
            judged = None
        # Whoever has beaten since is not dead.
        late = self.random.choice((0, 1))

        def take(subject: Subject) -> Any:
            dead = () if judged is None else ((judged, subject.beats.get(judged, 9) - late),)
            found = subject.backends[owner].ask(CountBeat(owner, dead, leaving))
            if leaving:
                return None
            subject.beats = found.beats
            return sorted(found.beats)

        self.left = self.left or judged is not None
        return Step(f"beat of {owner}, leaving {leaving}, {judged} {late} dead", take)

    # -- leases --------------------------------------------------------------------------

    def _fresh(self) -> int:
        self.clients[self.random.randrange(2)] = client_id = next(self.ids)
        return client_id

    def _grant(self, client_id: int) -> Step:
        return Step(
            f"grant {client_id}",
            lambda subject: subject.leases.grant(client_id, TERM_S, LeaseBounds()),
        )

    def _lease(self, client_id: int) -> Step:
        random = self.random
        if random.random() < 0.3:
            return Step(f"release {client_id}", lambda subject: subject.leases.release(client_id))
        told = Acknowledgements()
        if random.random() < 0.7:
            first = random.randint(1, 6)
            low = first + random.randint(1, 3)
            ranges = [(low, low + random.randint(0, 1))] if random.random() < 0.5 else []
            told = Acknowledgements(first, ranges)
        return Step(
            f"renew {client_id}, {told}", lambda subject: subject.leases.renew(client_id, told)
        )

    def _look(self, client_id: int) -> Step:
        def take(subject: Subject) -> Any:
            seen = subject.backends["a"].ask(LookAtClient(client_id))
            if seen is None:
                return None
            # A range that first incomplete has come to may be told with it, or beside it.
            acknowledged = CompletedSet(seen.first_incomplete)
            for first, last in seen.completed:
                acknowledged.add(first, last)
            return acknowledged.first_incomplete, acknowledged.ranges()

        return Step(f"look at {client_id}", take)

    def _shown(self) -> tuple[bytes, tuple[bytes, ...]]:
        # Most have the secret that most sessions have.
        one, other = b"one" * 8, b"other" * 5
        plain: list[tuple[bytes, tuple[bytes, ...]]]
        plain = [(one, ()), (one, ()), (one, ()), (one, (other,)), (other, ()), (b"", ())]
        return self.random.choice([*plain, (other, (b"third" * 5, one))])

    def _open(self, name: str) -> Step:
        client_id = next(self.ids)
        secret, older = self._shown()
        row = SessionRow(client_id, name, PEER, SessionState.OPEN, TERM_S, UNIX_S, secret)
        self.sessions.setdefault(name, client_id)

        def take(subject: Subject) -> Any:
            found = subject.leases.open_session(row, SessionPolicy(), older)
            return found.client_id, found.state, found.secret

        return Step(f"open {row} {secret!r} {older}", take)

    def _close(self, name: str) -> Step:
        secret, older = self._shown()

        def take(subject: Subject) -> Any:
            row, was_open = subject.leases.close_session(name, PEER, UNIX_S, secret, older)
            return row.client_id, row.state, was_open

        return Step(f"close {name} {secret!r} {older}", take)

    def _sweep(self) -> Step:
        # Whoever was busy is looked at again after a second.
        def take(subject: Subject) -> None:
            subject.age(1.5)
            subject.leases.sweep(TERM_S, 100 * TERM_S, UNIX_S)

        return Step("sweep", take)

    # -- time ----------------------------------------------------------------------------

    def _age(self, seconds: float) -> Step:
        def take(subject: Subject) -> None:
            subject.age(seconds)
            if seconds == 0.45 * TERM_S:
                # Often enough for the store to count as watched.
                subject.leases.sweep(TERM_S, 100 * TERM_S, UNIX_S)

        return Step(f"age {seconds:g} s", take)

    def _expire(self) -> Step:
        # Late is right, so what is asked for is what has to be: all that is long over
        # has gone, and nothing that is not.
        seconds = 1.5 if not self.left and self.random.random() < 0.3 else 200.0

        def take(subject: Subject) -> int:
            subject.age(seconds)
            return int(subject.backends["a"].expire_keys(LOST, 1000))

        self.left = False
        return Step(f"age {seconds:g} s, expire keys", take)


def _text(request: Any) -> str:
    fields = request._asdict()
    call = fields.pop("call")
    fields |= {name: value for name, value in vars(call).items() if name != "identity"}
    told = [f"{name}={value}" for name, value in fields.items() if value not in (b"", [], False)]
    return f"{type(request).__name__}({', '.join(told)})"


def _timely(subject: Subject, request: Any) -> Any:
    if isinstance(request, Claim) and request.until_s is not None:
        return request._replace(until_s=subject.now() + request.until_s)
    return request


def _plain(reply: Any) -> Any:
    if isinstance(reply, Claimed):
        assert reply.noted
        return reply
    if isinstance(reply, Finished):
        return reply
    # The store's clock.
    assert isinstance(reply, float)
    return "clock"


def taken(step: Step, subject: Subject) -> Any:
    try:
        return step.take(subject)
    except RiflError as error:
        return type(error)
