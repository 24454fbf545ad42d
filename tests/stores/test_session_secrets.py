"""Sessions of channels without a peer open by their secret, over every store (DESIGN §5)."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lease_server import (
    MemoryLeaseStorage,
    NotYours,
    SessionClosed,
    SessionsFrom,
    SessionState,
    open_authority,
)
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.session_secret import shown
from rifl._leases.openers import SessionOpeners, session_openers
from rifl._leases.peer import peer_of
from rifl._leases.requests import GrantTerms, LeaseRequests
from rifl._stores import open_store
from rifl._stores.opening import end_session
from rifl.core._shared.errors import BadHeader

_NUMBERS = itertools.count()
MINE, OTHERS = b"my secret, drawn at random", b"another's, drawn at random"
NEW, NEWER = b"my new one, drawn at random", b"an even newer one, at random"


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    name = f"secrets{next(_NUMBERS)}"
    if request.param == "redis":
        made: str = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "mariadb":
        made = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_")
    else:
        made = request.getfixturevalue("shared_postgres").url(schema=name)
    return made


class Server:
    """A lease server over one storage, asked as by the wire."""

    def __init__(self, storage: Any, sessions_from: Any) -> None:
        terms = GrantTerms(deduplicated=("*",))
        self.authority = open_authority(storage)
        self._requests = LeaseRequests(self.authority, terms, SessionOpeners.of(sessions_from))

    def open(self, name: str, *secrets: bytes, peer: bytes = b"", retention_ms: int = 0) -> int:
        """Open a session; its client id."""
        request = pb.OpenSessionRequest(name=name, retention_ms=retention_ms, **shown(secrets))
        reply = self._requests.open_session(request.SerializeToString(), peer)
        return pb.OpenSessionReply.FromString(reply).client_id

    def close(self, name: str, *secrets: bytes, peer: bytes = b"") -> None:
        """Close a session."""
        request = pb.CloseSessionRequest(name=name, **shown(secrets)).SerializeToString()
        self._requests.close_session(request, peer)


@pytest.fixture
def serve(url: str) -> Iterator[Callable[..., Server]]:
    """Make any number of servers over one store, one after the other."""
    store = open_store(url)
    yield lambda sessions_from=SessionsFrom.SECRET: Server(store.leases, sessions_from)
    store.close()


def refused(*attempts: Callable[[], Any]) -> set[str]:
    """Return what the attempts are refused with, all of them as NotYours."""
    texts = set()
    for attempt in attempts:
        with pytest.raises(NotYours) as error:
            attempt()
        texts.add(str(error.value))
    return texts


def test_a_session_opens_and_closes_by_its_secret_only(serve: Callable[..., Server]) -> None:
    """A missing and a wrong secret are one refusal, which changes nothing (§5)."""
    server = serve()
    mine = server.open("job", MINE)
    texts = refused(
        lambda: server.open("job"),
        lambda: server.open("job", OTHERS),
        lambda: server.close("job"),
        lambda: server.close("job", OTHERS),
        lambda: server.open("unknown"),
        lambda: server.close("unknown"),
    )
    assert len(texts) == 1
    assert server.open("job", MINE) == mine
    # Another server over the store knows it, too.
    assert serve().open("job", MINE) == mine
    server.close("job", MINE)
    for attempt in (server.open, server.close):
        assert refused(lambda attempt=attempt: attempt("job", OTHERS)) == texts  # type: ignore[misc]
    with pytest.raises(SessionClosed):
        server.open("job", MINE)
    server.close("job", MINE)
    with pytest.raises(BadHeader):
        server.open("other", b"too short")


def test_the_sessions_of_a_series_have_one_secret(serve: Callable[..., Server]) -> None:
    """Closing a number closes those below: nobody else opens one of the series (§5, §8)."""
    server = serve()
    server.open("query#1", MINE)
    second = server.open("query#2", MINE)
    refused(
        lambda: server.open("query#9", OTHERS),
        lambda: server.close("query#9", OTHERS),
        lambda: server.close("query#2", OTHERS),
    )
    server.close("query#1", MINE)
    refused(lambda: server.open("query#3", OTHERS), lambda: server.close("query#1", OTHERS))
    assert server.open("query#2", MINE) == second
    server.close("query#2", MINE)
    refused(lambda: server.open("query#3", OTHERS))
    with pytest.raises(SessionClosed):
        server.open("query#1", MINE)
    assert server.open("query#3", MINE) > 0


@pytest.mark.parametrize("name", ["job", "query#1"])
def test_a_new_secret_replaces_an_old_one_that_is_shown_with_it(
    serve: Callable[..., Server], name: str
) -> None:
    """In the step that opens or closes; the old one opens nothing from then on (§5)."""
    server = serve()
    mine = server.open(name, MINE)
    texts = refused(
        lambda: server.open(name, NEW),
        # What opens nothing changes nothing.
        lambda: server.open(name, NEW, OTHERS),
        lambda: server.close(name, NEW, OTHERS),
    )
    assert server.open(name, MINE, NEW) == mine
    assert server.open(name, NEW, MINE) == mine
    assert server.open(name, NEW, MINE) == mine
    for each in (server, serve()):
        assert refused(lambda each=each: each.open(name, MINE)) == texts  # type: ignore[misc]
        assert refused(lambda each=each: each.close(name, MINE)) == texts  # type: ignore[misc]
        assert each.open(name, NEW) == mine
    # Whichever is first counts, also where another process has shown it the other way round.
    last = serve()
    assert last.open(name, MINE, NEW) == mine
    assert last.open(name, NEWER, NEW, OTHERS, MINE) == mine
    refused(lambda: last.open(name, NEW), lambda: last.open(name, MINE))
    last.close(name, NEW, NEWER)
    refused(lambda: last.close(name, NEWER), lambda: serve().close(name, NEWER))
    for each in (last, serve()):
        each.close(name, NEW)
        with pytest.raises(SessionClosed):
            each.open(name, NEW)


def test_a_new_secret_is_that_of_the_whole_series(serve: Callable[..., Server]) -> None:
    """Of numbers below and above, ended ones, and those that are opened later (§5, §8)."""
    server = serve()
    ids = {number: server.open(f"query#{number}", MINE) for number in (1, 2, 3, 5)}
    server.close("query#1", MINE)
    assert server.open("query#3", NEW, MINE) == ids[3]
    for each in (server, serve()):
        for number in (2, 5):
            refused(lambda at=number, each=each: each.open(f"query#{at}", MINE))  # type: ignore[misc]
            assert each.open(f"query#{number}", NEW) == ids[number]
        refused(lambda each=each: each.open("query#9", MINE))  # type: ignore[misc]
        with pytest.raises(SessionClosed):
            each.open("query#1", NEW)
    server = serve()
    # A number that was never opened: the series has the newer one, also if it is refused.
    with pytest.raises(SessionClosed):
        server.close("query#9", NEWER, NEW)
    refused(lambda: server.open("query#5", NEW), lambda: server.close("query#9", NEW))
    assert server.open("query#8", NEWER) > 0
    server.close("query#8", NEWER)
    refused(lambda: serve().open("query#10", NEW))
    assert serve().open("query#10", NEWER) > 0


@pytest.mark.parametrize("name", ["job", "query#1"])
def test_a_new_secret_replaces_that_of_an_ended_session(
    serve: Callable[..., Server], name: str
) -> None:
    """Or, with the new one alone, the end would not be told any more (§5)."""
    server = serve()
    server.open(name, MINE)
    server.close(name, MINE)
    with pytest.raises(SessionClosed):
        server.open(name, NEW, MINE)
    for each in (server, serve()):
        with pytest.raises(SessionClosed):
            each.open(name, NEW)
        refused(lambda each=each: each.open(name, MINE))  # type: ignore[misc]


@pytest.mark.parametrize("url", ["redis", "postgresql", "mariadb"], indirect=True)
def test_what_was_read_before_does_not_bring_an_old_secret_back(url: str) -> None:
    """Another server closes a session, or sweeps it, after it was rekeyed (§5, §6)."""
    store = open_store(url)
    server = Server(store.leases, SessionsFrom.SECRET)
    for name in ("job", "query#1"):
        server.open(name, MINE)
    read = store.leases.load_sessions()
    for name in ("job", "query#1"):
        server.open(name, NEW, MINE)
    for row in read:
        store.leases.put_session(replace(row, state=SessionState.CLOSED))
    for name in ("job", "query#1"):
        refused(lambda name=name: server.open(name, MINE))  # type: ignore[misc]
        with pytest.raises(SessionClosed):
            server.open(name, NEW)
    store.close()


def test_a_name_that_another_server_takes_meanwhile_is_not_given_away(
    shared_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over Redis an opening is several steps: between two of them the name may be taken (§5)."""
    store = open_store(shared_redis.url(namespace=f"secrets{next(_NUMBERS)}"))
    leases: Any = store.leases
    mine, others = Server(leases, SessionsFrom.SECRET), Server(leases, SessionsFrom.SECRET)
    find = leases._find

    def taken_first(name: str, peer: bytes) -> Any:
        monkeypatch.setattr(leases, "_find", find)
        others.open(name, OTHERS)
        return find(name, peer)

    for name, attempt in (("opened", mine.open), ("closed", mine.close), ("closed#1", mine.close)):
        monkeypatch.setattr(leases, "_find", taken_first)
        refused(lambda name=name, attempt=attempt: attempt(name, MINE, NEW))  # type: ignore[misc]
        assert others.open(name, OTHERS) > 0
    store.close()


def test_older_secrets_are_few_and_none_is_short(serve: Callable[..., Server]) -> None:
    """Who shows older ones has a new one, too; else it is refused, and nothing is changed (§5)."""
    server = serve(SessionsFrom.ANYONE)
    server.open("job", MINE)
    for secrets in ((b"", MINE), (NEW, b""), (NEW, b"too short"), (NEW, MINE, *[OTHERS] * 3)):
        for attempt in (server.open, server.close):
            with pytest.raises(BadHeader):
                attempt("job", *secrets)
    server.open("none")
    refused(lambda: server.open("none", NEW, MINE))
    server.open("job", MINE)
    # With a peer no secret is looked at.
    server.open("job", b"", b"", peer=b"alice")


def test_processes_that_have_either_order_are_never_refused(serve: Callable[..., Server]) -> None:
    """While one list is rolled out and the other not gone, every opening succeeds (§5)."""
    server = serve()
    mine = server.open("job", MINE), server.open("query#7", MINE)

    def opens(at: int) -> set[tuple[int, int]]:
        secrets = (MINE, NEW) if at % 2 else (NEW, MINE)
        kept = [1_000 * (at + 10 * each) for each in range(8)]
        return {
            (
                server.open("job", *secrets, retention_ms=length),
                server.open("query#7", *secrets, retention_ms=length),
            )
            for length in kept
        }

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(opens, range(6))] == [{mine}] * 6
    assert (server.open("job", NEW, MINE), server.open("query#7", NEW, MINE)) == mine
    refused(lambda: server.open("job", MINE), lambda: server.open("query#7", MINE))


@pytest.mark.parametrize("name", ["job", "query#1"])
def test_a_session_without_a_secret_opens_by_its_name_where_anyone_may_open_it(
    serve: Callable[..., Server], name: str
) -> None:
    """A name opens what has no secret, and no secret does, at any time or server (§5)."""
    anyone, strict = serve(SessionsFrom.ANYONE), serve()
    mine = anyone.open(name)
    refused(
        lambda: anyone.open(name, MINE),
        lambda: anyone.close(name, MINE),
        lambda: strict.open(name),
        lambda: strict.open(name, MINE),
        lambda: strict.close(name),
        lambda: strict.close(name, MINE),
    )
    # The second reads what the first has stored.
    for server in (anyone, serve(SessionsFrom.ANYONE)):
        assert server.open(name) == mine
    anyone.close(name)
    with pytest.raises(SessionClosed):
        anyone.open(name)
    refused(lambda: anyone.open(name, MINE))


@pytest.mark.parametrize("name", ["job", "query#1"])
def test_a_session_with_a_secret_opens_by_that_alone_where_anyone_may_open_sessions(
    serve: Callable[..., Server], name: str
) -> None:
    """Its name does not open it, nor another number of its series (§5)."""
    anyone = serve(SessionsFrom.ANYONE)
    mine = anyone.open(name, MINE)
    refused(
        lambda: anyone.open(name),
        lambda: anyone.open(name, OTHERS),
        lambda: anyone.close(name),
        lambda: anyone.close(name, OTHERS),
    )
    for server in (anyone, serve(SessionsFrom.ANYONE), serve()):
        assert server.open(name, MINE) == mine
    anyone.close(name, MINE)


def test_a_series_without_a_secret_takes_none_with_one(serve: Callable[..., Server]) -> None:
    """Closing a number closes those below, so all of a series open by the same (§5, §8)."""
    anyone = serve(SessionsFrom.ANYONE)
    first, second = anyone.open("query#1"), anyone.open("query#2")
    refused(
        lambda: anyone.open("query#3", MINE),
        lambda: anyone.close("query#2", MINE),
        lambda: anyone.close("query#9", MINE),
    )
    assert (anyone.open("query#1"), anyone.open("query#2")) == (first, second)
    anyone.close("query#2")
    refused(lambda: anyone.open("query#3", MINE))
    with pytest.raises(SessionClosed):
        anyone.open("query#1")
    assert anyone.open("query#3") > second


def test_an_authenticated_peer_needs_no_secret(serve: Callable[..., Server]) -> None:
    """The channel says who it is: a secret is not looked at, and names are the peer's (§5)."""
    server = serve()
    alice = server.open("job", peer=b"alice")
    assert server.open("job", MINE, peer=b"alice") == alice
    assert server.open("job", peer=b"mallory") != alice
    assert server.open("job", MINE) != alice
    server.close("job", OTHERS, peer=b"alice")
    with pytest.raises(SessionClosed):
        server.open("job", peer=b"alice")


def test_a_name_has_no_nul(serve: Callable[..., Server]) -> None:
    """Not every store can hold one: refused everywhere, the same (§3)."""
    server = serve()
    for attempt in (server.open, server.close):
        with pytest.raises(BadHeader, match="no NUL"):
            attempt("a\0b", MINE)


def test_no_store_holds_a_secret(tmp_path: Path) -> None:
    """What is kept opens nothing: neither the secret nor a part of it is in the file (§5)."""
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    storage: Any = store.leases
    Server(storage, SessionsFrom.SECRET).open("job", MINE)
    (row,) = storage.load_sessions()
    assert len(row.secret) == 32
    assert "secret" not in repr(row)
    with pytest.raises(NotYours):
        Server(storage, SessionsFrom.SECRET).open("job", row.secret)
    store.close()
    with sqlite3.connect(path) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert MINE.decode() not in dump
    assert MINE.hex() not in dump.lower()


def peer(*names: str) -> bytes:
    """Return the identity of a caller whose certificate has these names."""
    context = SimpleNamespace(
        peer_identities=lambda: [each.encode() for each in names],
        peer_identity_key=lambda: "spiffe",
    )
    return peer_of(context)


@pytest.mark.parametrize(
    ("sessions_from", "peers", "others"),
    [
        ("peers", True, (False, False)),
        ("secret", True, (True, False)),
        ("anyone", True, (True, True)),
        (["dns:jobs", "dns:billing"], False, (False, False)),
        (["dns:Reports", "dns:jobs"], True, (False, False)),
    ],
)
def test_who_may_open_sessions_is_said(
    sessions_from: Any, peers: bool, others: tuple[bool, bool]
) -> None:
    """Callers with a certificate, or some of them; those with a secret, or with neither (§5)."""
    server = Server(MemoryLeaseStorage(), sessions_from)

    def may(name: str, *secrets: bytes, **shown: bytes) -> bool:
        try:
            server.open(name, *secrets, **shown)
            server.close(name, *secrets, **shown)
        except NotYours:
            refused(lambda: server.close(name, *secrets, **shown))
            return False
        return True

    assert may("job", peer=peer("dns:reports", "dns:a")) is peers
    assert (may("secret", MINE), may("open")) == others


@pytest.mark.parametrize("wrong", ["authenticated", "dns:jobs", [], [""], [b"dns:jobs"]])
def test_who_may_open_sessions_is_a_word_or_names(wrong: Any) -> None:
    """A name alone is refused, as a misspelt word would let somebody else in."""
    with pytest.raises(ValueError, match=r"sessions_from|SessionsFrom"):
        SessionOpeners(wrong)
    assert session_openers("dns:a,dns:b").shown(b"", "job", peer("dns:b")) == (b"",)


def test_an_operator_ends_a_session_by_its_name(url: str) -> None:
    """Whoever opened it, with a secret, a certificate or neither; in a server or beside it (§5)."""
    store = open_store(url)
    server = Server(store.leases, "anyone")
    for name in ("here", "there"):
        server.open(name, MINE)
        server.open(name, peer=peer("dns:jobs"))
        server.open(f"{name}#1", OTHERS)
        server.open(f"{name}#2", OTHERS)
    server.open("free")
    assert len(server.authority.end_session("here")) == 2
    assert len(server.authority.end_session("here#2")) == 1
    assert len(server.authority.end_session("free")) == 1
    assert server.authority.end_session("here") == []
    ended = "here"
    if url != "memory:":
        store.close()
        assert len(end_session(url, "there")) == 2
        assert len(end_session(url, "there#2")) == 1
        store = open_store(url)
        server = Server(store.leases, "anyone")
        ended = "there"
    for attempt in (
        lambda: server.open(ended, MINE),
        lambda: server.open(ended, peer=peer("dns:jobs")),
        lambda: server.open(f"{ended}#1", OTHERS),
        lambda: server.open(f"{ended}#2", OTHERS),
        lambda: server.open("free"),
    ):
        with pytest.raises(SessionClosed):
            attempt()
    store.close()
