"""A group's log in etcd: what is its own there, bounds, leases, rights (DESIGN §7)."""

from __future__ import annotations

import contextlib

import grpc
import pytest
import trustme

from chaos.etcd_cluster import EtcdCluster
from curp.log import create_log, open_engine
from curp.log._checks import MAX_TAGS
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LeaseHeld,
    LogError,
    LogUnavailable,
)
from curp.log._values import LogEntry, MetadataCondition
from tests.curp.log.conformance import Writer
from tests.curp.log.damage.etcd import Damage
from tests.curp.log.damage.place import Place, verified
from tests.curp.logs import created


@pytest.fixture
def place(shared_etcd, group):
    """A log of its own in the shared cluster."""
    place = Place(Damage(shared_etcd, group))
    yield place
    place.close()


# What a log is found by.


@pytest.mark.parametrize("part", ["id", "head"])
def test_a_log_that_lacks_a_part(place, part):
    """Nothing is guessed, and nothing is begun anew over what is left (DESIGN §7, §9)."""
    engine = place.fill().open()
    place.damage.set_part(part, None)
    for asked in (engine.tail, lambda: engine.read(5), lambda: place.open().tail()):
        with pytest.raises(CorruptLog):
            asked()
    assert verified(place.url)
    with pytest.raises(LogError):
        create_log(place.url)


@pytest.mark.parametrize("part", ["id", "head", "removed"])
def test_a_part_that_makes_no_sense(place, part):
    """It is CorruptLog, not an accident (DESIGN §9)."""
    engine = place.fill().open()
    place.damage.set_part(part, b"\xff?")
    for asked in (engine.tail, lambda: engine.read(5), lambda: place.open().tail()):
        with pytest.raises(CorruptLog):
            asked()
    assert verified(place.url)


# Bounds.


def test_a_chunk_larger_than_a_request(place):
    """It is written in pieces, and comes back as it was (DESIGN §7: chunks as they are)."""
    writer = Writer(place.open())
    chunks = [bytes(range(256)) * 20_000, b"", b"x" * (512 << 10), b"y" * ((512 << 10) + 1)]
    writer.append(b"a")
    writer.snapshot(1, *chunks)
    assert list(place.open().load_snapshot().chunks) == chunks


def test_what_does_not_fit_into_a_transaction(place):
    """Metadata over the server's bounds is refused by type, and nothing is written (§9)."""
    writer = Writer(place.open())
    engine = writer.engine
    many = {str(n): b"v" for n in range(220)}
    large = {"k": b"v" * (1 << 20), "l": b"v" * (1 << 20)}
    for metadata in (many, large):
        with pytest.raises(InvalidRequest):
            writer.append(b"a", metadata=metadata)
        with pytest.raises(InvalidRequest):
            engine.put_metadata(metadata, configuration=1)
        with pytest.raises(InvalidRequest):
            engine.next_configuration(1, metadata, term_s=5)
    assert (engine.tail(), set(engine.all_metadata())) == (0, {"curp-store"})
    # The most that goes with two conditions.
    del many["0"], many["2"]
    engine.put_metadata(many, configuration=1, condition=MetadataCondition("1", None))
    assert len(engine.all_metadata()) == 219


def test_the_largest_append_there_is(place):
    """As many entries, bytes and tags as the limits allow fit into one request (DESIGN §9)."""
    writer = Writer(place.open())
    entries, size = writer.engine.limits
    tags = [f"{n:x}" for n in range(16)] + [f"{n:02x}" for n in range(MAX_TAGS - 16)]
    share = size // entries - sum(map(len, tags))
    writer.append(*[b"x" * share] * entries, tags=tags, metadata={"k": b"v" * (100 << 10)})
    assert writer.engine.read(entries - 1) == [LogEntry(entries, b"x" * share, tuple(tags))]


def test_a_server_that_takes_less_than_the_url_says(place, shared_etcd, group):
    """It is told when the log is opened, not by the first large append (DESIGN §9)."""
    place.open()
    with pytest.raises(InvalidRequest, match=r"too large|larger than max"):
        open_engine(shared_etcd.url(group=group, max_request_bytes=3 << 20))
    url = shared_etcd.url(group=group, max_request_bytes=1 << 20)
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        size = engine.limits.append_bytes
        assert size > 400 << 10
        writer.append(b"x" * size)
        assert engine.read(0)[0].body == b"x" * size


# Leases.


def test_a_renewal_that_was_delayed_ends_no_later_one(place):
    """It finds that the key was written since, and takes a newer lease (invariant 10)."""
    engine, same = place.open(), place.open()
    number = engine.take_leadership("one", "a:1", term_s=50)
    same.renew_leadership(number, term_s=500)
    # This engine still knows the revision of its own writing.
    engine.renew_leadership(number, term_s=300)
    assert 200 < engine.leadership().expires_in_s <= 300
    # One that took so long that its lease is over by now is an error, not a renewal.
    place.damage.grant_late(engine)
    with pytest.raises(LogUnavailable, match="lease not found"):
        engine.renew_leadership(number, term_s=300)
    engine.renew_leadership(number, term_s=400)
    assert engine.leadership().expires_in_s > 300


def test_what_a_stuck_leader_of_etcd_revokes_late_is_no_longer_the_lease(place, shared_etcd):
    """It knows only leases from before a renewal elsewhere (etcd 15247; invariant 10)."""
    engine, other = place.open(), place.open()
    number = engine.take_leadership("one", "a:1", term_s=100)
    before = place.damage.lease()
    engine.renew_leadership(number, term_s=100)
    shared_etcd.control("lease", "revoke", before)
    with pytest.raises(LeaseHeld):
        other.take_leadership("two", "b:1", term_s=100)
    shared_etcd.control("lease", "revoke", place.damage.lease())
    assert other.take_leadership("two", "b:1", term_s=100) == number + 1


# Who may.


@pytest.fixture(scope="module")
def guarded_etcd(tmp_path_factory):
    """A node that speaks TLS with those it knows, and knows users."""
    folder = tmp_path_factory.mktemp("guarded-etcd")
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, cert in (("server", server), ("client", client)):
        cert.private_key_pem.write_to_path(folder / f"{name}.key")
        cert.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        client.private_key_pem.bytes(),
        client.cert_chain_pems[0].bytes(),
    )
    flags = ("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")
    with EtcdCluster(
        folder / "etcd",
        *(f"--{flag}={folder / name}" for flag, name in flags),
        "--client-cert-auth",
        "--auth-token-ttl=2",
        nodes=1,
        credentials=credentials,
    ) as cluster:
        cluster.folder = folder

        def control(*arguments):
            files = ("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")
            named = [part for flag, name in files for part in (flag, str(folder / name))]
            return cluster.control("--insecure-transport=false", *named, *arguments)

        for user in ("root", "curp"):
            control("user", "add", f"{user}:secret ü")
        control("role", "add", "curp")
        control("role", "grant-permission", "curp", "--prefix=true", "readwrite", "mine/")
        control("role", "add", "root")
        control("user", "grant-role", "root", "root")
        control("user", "grant-role", "curp", "curp")
        control("auth", "enable")
        yield cluster


def _guarded(cluster, who, prefix, group):
    folder = cluster.folder
    files = f"ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key"
    host = cluster.nodes[0].host
    return f"etcds://{who}{host}/{prefix}?group={group}&{files}&timeout_s=2"


def test_users_and_certificates(guarded_etcd):
    """A user with rights on its prefix, over TLS; its token is renewed when it ends (§8)."""
    url = created(_guarded(guarded_etcd, "curp:secret%20%C3%BC@", "mine", "bank"))
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        writer.append(b"a")
        Damage(guarded_etcd, "bank").forget_sign_in(engine)
        writer.append(b"b")
        assert engine.wait(1, timeout_s=5) == 2
        writer.snapshot(2, b"s")
        engine.trim(2, configuration=1)
        assert engine.first() == 3


@pytest.mark.parametrize(
    ("who", "prefix", "told"),
    [
        ("", "mine", "permission denied"),
        ("curp:wrong@", "mine", "authentication failed"),
        ("curp:secret%20%C3%BC@", "others", "permission denied"),
    ],
)
def test_who_may_not(guarded_etcd, who, prefix, told):
    """It is a typed error that says so, without the password (DESIGN §9)."""
    with pytest.raises(LogUnavailable, match=told) as caught:
        open_engine(_guarded(guarded_etcd, who, prefix, "bank"))
    assert "secret" not in str(caught.value)
