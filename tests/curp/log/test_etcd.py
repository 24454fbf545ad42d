"""The log in etcd: the conformance suite, over a cluster of three nodes (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading

import grpc
import pytest
import trustme

from chaos.etcd_cluster import EtcdCluster
from curp.log import open_engine
from curp.log._checks import MAX_TAGS
from curp.log._engine import Entry, MetadataCondition
from curp.log._errors import (
    CorruptLog,
    EngineUnavailable,
    InvalidRequest,
    LeaseHeld,
    TrimmedLog,
)
from sharedlog._engines.etcd.calls import (
    LEASE_GRANT,
    LEASE_TIME_TO_LIVE,
    TXN,
    delete,
    get,
    put,
    scan,
)
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from tests.curp.log.conformance import LogConformance, ServedPlace, Writer
from tests.curp.logs import created_older
from tests.helpers.waiting import until


class Place(ServedPlace):
    """A group's log in a cluster, whose leases are moved instead of its clock."""

    def pass_time(self, seconds):
        """Let time pass: the lease's key goes on under a shorter lease, or is gone."""
        log = open_engine(self.url)._log
        try:
            _, found = log.read(get(log.keys.lease))
            if not found[0].kvs:
                return
            (lease,) = found[0].kvs
            asked = pb.LeaseTimeToLiveRequest(id=lease.lease)
            left_s = log.client.call(LEASE_TIME_TO_LIVE, asked, again=True).ttl - int(seconds)
            if left_s > 0:
                asked = pb.LeaseGrantRequest(ttl=left_s)
                granted = log.client.call(LEASE_GRANT, asked, again=True)
                step = put(lease.key, lease.value, lease=granted.id)
            else:
                step = delete(lease.key)
            log.client.call(TXN, pb.TxnRequest(success=[step]), again=True)
        finally:
            log.close()

    def change(self, *steps):
        """Do something to the group's keys, past all rules."""
        log = self.opened[0]._log
        return log.client.call(TXN, pb.TxnRequest(success=steps), again=True)

    @property
    def keys(self):
        """The group's keys."""
        return self.opened[0]._log.keys


@pytest.fixture
def place(shared_etcd, group):
    """A log of its own in the shared cluster."""
    place = Place(shared_etcd, group)
    yield place
    place.close()


# What is made now is in ``test_commits``.
@pytest.mark.long
class TestEtcdConformance(LogConformance):
    """``EtcdEngine``."""


# Damage.


@pytest.fixture
def broken(place):
    """A log with a little of everything, to be damaged."""
    writer = Writer(place.open())
    for lsn in range(1, 11):
        writer.append(b"body %d" % lsn, tags=("t",))
    writer.snapshot(4, b"one", b"two")
    writer.engine.trim(2, configuration=1)
    return place


@pytest.mark.parametrize("lsn", [3, 7, 10])
def test_a_missing_entry(broken, lsn):
    """It is CorruptLog, by tag and without (DESIGN §7)."""
    broken.change(delete(broken.keys.append(lsn)))
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)


@pytest.mark.parametrize("damage", [b"body 7", b"\n\x08\n\x06body", b""])
def test_a_changed_entry(broken, damage):
    """One byte changed, or the end torn off, is CorruptLog (DESIGN §7)."""
    (value,) = broken.change(get(broken.keys.append(7))).responses[0].range.kvs
    changed = value.value.replace(b"body 7", b"bodY 7") if damage == b"body 7" else damage
    broken.change(put(broken.keys.append(7), changed))
    assert len(broken.open().read(2, limit=4)) == 4
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)


@pytest.mark.parametrize("key", ["log_id", "configuration", "tail", "trimmed"])
def test_a_log_that_lacks_a_key(broken, key):
    """Nothing is guessed, and nothing is begun anew over what is left (DESIGN §7, §9)."""
    engine = broken.opened[0]
    broken.change(delete(getattr(broken.keys, key)))
    for asked in (engine.tail, lambda: engine.read(5), lambda: broken.open().tail()):
        with pytest.raises(CorruptLog):
            asked()


@pytest.mark.parametrize("key", ["configuration", "tail", "trimmed", "snapshot", "leader"])
def test_a_key_that_makes_no_sense(broken, key):
    """It is CorruptLog, not an accident (DESIGN §9)."""
    broken.change(put(getattr(broken.keys, key), b"\xff?"))
    asked = {"leader": "leadership", "snapshot": "load_snapshot"}.get(key, "tail")
    with pytest.raises(CorruptLog):
        getattr(broken.open(), asked)()


def test_a_newer_format(broken):
    """A log written by a newer release is refused, and left as it is (DESIGN §7)."""
    (found,) = broken.change(get(broken.keys.log_id)).responses[0].range.kvs
    newer = found.value.replace(b'"format": 1', b'"format": 3')
    broken.change(put(broken.keys.log_id, newer))
    with pytest.raises(CorruptLog, match="newer release"):
        broken.open()


def test_a_damaged_snapshot(broken):
    """A piece that is missing or changed is CorruptLog (DESIGN §7, invariant 8)."""
    first, end = broken.keys.root + b"pieces/", broken.keys.root + b"pieces0"
    _, second = broken.change(scan(first, end, 0)).responses[0].range.kvs
    broken.change(put(second.key, second.value.replace(b"two", b"twO")))
    with pytest.raises(CorruptLog):
        list(broken.open().load_snapshot().chunks)
    broken.change(delete(second.key))
    with pytest.raises(CorruptLog):
        list(broken.open().load_snapshot().chunks)


def test_trimmed_keys_are_gone(broken):
    """What is trimmed gives its room back, and so do old snapshots (DESIGN §7)."""
    writer = Writer(broken.open())
    writer.snapshot(10, b"all")
    writer.engine.trim(10, configuration=writer.configuration)
    keys = broken.keys
    found = broken.change(scan(keys.root, keys.end, 0)).responses[0].range.kvs
    names = [kv.key.removeprefix(keys.root).partition(b"/")[0] for kv in found]
    assert names.count(b"pieces") == 1
    assert b"log" not in names
    with pytest.raises(TrimmedLog):
        broken.open().read(9)


# Bounds, and what waits.


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
    many = {str(n): b"v" for n in range(121)}
    large = {"k": b"v" * (1 << 20), "l": b"v" * (1 << 20)}
    for metadata in (many, large):
        with pytest.raises(InvalidRequest):
            writer.append(b"a", metadata=metadata)
        with pytest.raises(InvalidRequest):
            engine.put_metadata(metadata, configuration=1)
        with pytest.raises(InvalidRequest):
            engine.next_configuration(1, metadata, term_s=5)
    assert (engine.tail(), set(engine.all_metadata())) == (0, {"curp-store"})
    del many["0"]
    engine.put_metadata(many, configuration=1, condition=MetadataCondition("1", None))
    assert len(engine.all_metadata()) == 121


def test_the_largest_append_there_is(place):
    """As many entries, bytes and tags as the limits allow fit into one request (DESIGN §9)."""
    writer = Writer(place.open())
    entries, size = writer.engine.limits
    tags = [f"{n:x}" for n in range(16)] + [f"{n:02x}" for n in range(MAX_TAGS - 16)]
    share = size // entries - sum(map(len, tags))
    writer.append(*[b"x" * share] * entries, tags=tags, metadata={"k": b"v" * (100 << 10)})
    assert writer.engine.read(entries - 1) == [Entry(entries, b"x" * share, tuple(tags))]


def test_a_server_that_takes_less_than_the_url_says(place, shared_etcd, group):
    """It is told when the log is opened, not by the first large append (DESIGN §9)."""
    place.open()
    with pytest.raises(InvalidRequest, match=r"too large|larger than max"):
        open_engine(shared_etcd.url(group=group, max_request_bytes=3 << 20))
    url = shared_etcd.url(group=group, max_request_bytes=1 << 20)
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        writer.append(b"x" * engine.limits.append_bytes)
        assert engine.read(0)[0].body == b"x" * (512 << 10)


def test_a_wait_ends_with_an_append(place, monkeypatch):
    """A watch wakes it, not a timer (DESIGN §7)."""
    monkeypatch.setattr("curp.log._etcd.engine._LOOK_S", 300.0)
    writer, reader = Writer(place.open()), place.open()
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait(0, timeout_s=300)))
    waiter.start()
    until(lambda: reader._watch.count > 0, "it watches")
    writer.append(b"a")
    waiter.join(60)
    assert woken == [1]


def test_a_renewal_that_was_delayed_ends_no_later_one(place):
    """It finds that the key was written since, and takes a newer lease (invariant 10)."""
    engine, same = place.open(), place.open()
    number = engine.take_leadership("one", "a:1", term_s=50)
    same.renew_leadership(number, term_s=500)
    # This engine still knows the revision of its own writing.
    engine.renew_leadership(number, term_s=300)
    assert 200 < engine.leadership().expires_in_s <= 300
    # One that took so long that its lease is over by now is an error, not a renewal.
    engine._lease._grant = lambda term_s: 12345
    with pytest.raises(EngineUnavailable, match="lease not found"):
        engine.renew_leadership(number, term_s=300)


def test_what_a_stuck_leader_of_etcd_revokes_late_is_no_longer_the_lease(place, shared_etcd):
    """It knows only leases from before a renewal elsewhere (etcd 15247; invariant 10)."""
    engine, other = place.open(), place.open()
    number = engine.take_leadership("one", "a:1", term_s=100)

    def lease():
        (found,) = place.change(get(place.keys.lease)).responses[0].range.kvs
        return f"{found.lease:x}"

    before = lease()
    engine.renew_leadership(number, term_s=100)
    shared_etcd.control("lease", "revoke", before)
    with pytest.raises(LeaseHeld):
        other.take_leadership("two", "b:1", term_s=100)
    shared_etcd.control("lease", "revoke", lease())
    assert other.take_leadership("two", "b:1", term_s=100) == number + 1


# Who may, and addresses.


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
    url = created_older(_guarded(guarded_etcd, "curp:secret%20%C3%BC@", "mine", "bank"))
    with contextlib.closing(open_engine(url)) as engine:
        writer = Writer(engine)
        writer.append(b"a")
        writer.engine._log.client._token = "none-of-theirs"  # noqa: S105 - no secret
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
    with pytest.raises(EngineUnavailable, match=told) as caught:
        open_engine(_guarded(guarded_etcd, who, prefix, "bank"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "etcd://127.0.0.1",
        "etcd:///curp?group=a",
        "etcd://h:port?group=a",
        "etcd://h?group=a&colour=red",
        "etcd://h?group=a&timeout_s=0",
        "etcd://h?group=a&try_s=soon",
        "etcd://h?group=a&max_request_bytes=10",
        "etcd://h?group=a&compact=maybe",
        "etcd://h?group=a&ca=/ca.pem",
        "etcds://h?group=a&cert=/c.pem",
        "etcds://h?group=a&ca=/no/such/file",
        "etcd://hunter2@h?group=a",
    ],
)
def test_a_url_that_names_no_log(url):
    """A typed error that does not repeat the URL (DESIGN §9)."""
    with pytest.raises(InvalidRequest) as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)
