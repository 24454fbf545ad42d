"""``rifl lease-server`` as a real process."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
import trustme

from lease_server.v1 import lease_server_pb2 as pb
from rifl._grpc.entrance import WAITING
from tests.helpers.half_open import half_open
from tests.helpers.ports import free_port
from tests.helpers.waiting import until
from tests.stores.redis.servers import RedisServer

ROOT = Path(__file__).parents[2]
PREFIX = "/lease_server.v1.LeaseServer/"


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "rifl", "lease-server", "--listen", "127.0.0.1:0", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_cleanly(number, redis):
    """It prints its address, grants, streams, sweeps, and a signal ends it with 0 (§5)."""
    metrics = f"127.0.0.1:{free_port()}"
    more = ("--deduplicated", "/a.B/*", "--metrics", metrics)
    process = start("--store", redis.url(), "--term-s", "0.2", *more)
    try:
        target = process.stdout.readline().strip()
        with grpc.insecure_channel(target) as channel:
            ask = channel.unary_unary(
                PREFIX + "Grant", response_deserializer=pb.GrantReply.FromString
            )
            grant = ask(b"", timeout=20)
            assert (grant.term_ms, list(grant.deduplicated)) == (200, ["/a.B/*"])
            assert grant.heartbeat == pb.HEARTBEAT_STREAM
            assert grant.store
            beat = channel.stream_stream(
                PREFIX + "KeepAlive", response_deserializer=pb.RenewReply.FromString
            )
            other = pb.RenewRequest(client_id=grant.client_id, token=b"x").SerializeToString()
            assert [reply.refused for reply in beat(iter([other]), timeout=20)] == ["NOT_YOURS"]
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20) as page:
                counted = 'callers_refused_total{kind="client_token",reason="wrong"} 1.0'
                assert counted in page.read().decode()
            # More half-open calls than wait: the oldest of them makes room.
            with half_open(target, {"127.0.1.1": [PREFIX + "Grant"] * (WAITING + 1)}) as strangers:
                until(lambda: strangers.ended > 0, "calls that had to make room")
                assert strangers.most_streams == 2_000
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert "stopped" in err
    assert "caller_refused" in err


@pytest.mark.slow
def test_it_speaks_tls_and_binds_tokens_to_certificates(redis, tmp_path):
    """Its certificate is read again at SIGHUP; the store's password is in no argument (§5).

    One certificate holds as many leases as it may (§9).
    """
    old, new = trustme.CA(), trustme.CA()
    (tmp_path / "store").write_text(redis.url(namespace="certified"))
    old.cert_pem.write_to_path(tmp_path / "ca.pem")

    def issue(authority):
        mine = authority.issue_cert("127.0.0.1")
        mine.cert_chain_pems[0].write_to_path(tmp_path / "mine.pem")
        mine.private_key_pem.write_to_path(tmp_path / "mine.key")

    def opened(authority, name):
        own = old.issue_cert(name, common_name=name)
        pair = own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
        return grpc.secure_channel(target, credentials, (("grpc.use_local_subchannel_pool", 1),))

    def ask(channel, method, request, reply):
        call = channel.unary_unary(PREFIX + method, response_deserializer=reply.FromString)
        return call(request.SerializeToString(), timeout=20)

    issue(old)
    tls = ("--tls-certificate", tmp_path / "mine.pem", "--tls-key", tmp_path / "mine.key")
    tls += ("--tls-client-authorities", tmp_path / "ca.pem")
    given = (*tls, "--peer-property", "x509_common_name", "--store-file", tmp_path / "store")
    given += ("--max-clients", "9", "--max-clients-per-caller", "1")
    process = start(*map(str, given))
    try:
        target = process.stdout.readline().strip()
        with opened(old, "ann") as ann, opened(old, "bob") as bob:
            grant = ask(ann, "Grant", pb.GrantRequest(), pb.GrantReply)
            renewal = pb.RenewRequest(
                client_id=grant.client_id, token=grant.token, store=grant.store
            )
            assert ask(ann, "Renew", renewal, pb.RenewReply).term_ms
            with pytest.raises(grpc.RpcError, match="this certificate holds as many leases"):
                ask(ann, "Grant", pb.GrantRequest(), pb.GrantReply)
            assert ask(bob, "Grant", pb.GrantRequest(), pb.GrantReply).client_id
            with pytest.raises(grpc.RpcError) as refused:
                ask(bob, "Renew", renewal, pb.RenewReply)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with grpc.insecure_channel(target) as plain, pytest.raises(grpc.RpcError):
                ask(plain, "Grant", pb.GrantRequest(), pb.GrantReply)
            issue(new)
            process.send_signal(signal.SIGHUP)

            def renewed():
                with opened(new, "cid") as after:
                    try:
                        return ask(after, "Grant", pb.GrantRequest(), pb.GrantReply).client_id
                    except grpc.RpcError:
                        return None

            until(renewed, "the new certificate is in use")
            assert ask(ann, "Renew", renewal, pb.RenewReply).term_ms
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.slow
def test_it_says_what_is_wrong_and_leaves(redis, tmp_path):
    """A pattern, a term, an address or a store that cannot be is one line and a failure (§9)."""
    for arguments, message in (
        (("--store", redis.url(), "--deduplicated", "nonsense"), "not a method pattern"),
        (("--store", redis.url(), "--term-s", "0"), "--term-s must be positive"),
        (
            ("--store", redis.url(), "--max-clients", "0"),
            "max_clients=0 must be a whole number, 1 or more",
        ),
        (("--store", redis.url(), "--listen", "256.0.0.1:x"), "rifl lease-server:"),
        (("--store", "memory:"), "that the servers share"),
        (("--store", f"sqlite:///{tmp_path / 'alone.db'}"), "that the servers share"),
    ):
        process = start(*arguments)
        _, err = process.communicate(timeout=30)
        assert process.returncode != 0
        assert message in err
        assert "Traceback" not in err


def test_the_package_imports_nothing_of_rifl():
    """lease_server is the ground floor: all of it loads no rifl (§2)."""
    code = (
        "import importlib, pkgutil, sys, lease_server\n"
        "names = [each.name for each in pkgutil.iter_modules(lease_server.__path__)]\n"
        "assert len(names) > 10\n"
        "[importlib.import_module(f'lease_server.{n}') for n in names]\n"
        "found = sorted(n for n in sys.modules if n.split('.')[0] in ('rifl', 'curp'))\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
