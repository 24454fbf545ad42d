"""``python -m lease_server`` as a real process."""

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from lease_server.v1 import lease_server_pb2 as pb

ROOT = Path(__file__).parents[2]
PREFIX = "/lease_server.v1.LeaseServer/"


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "lease_server", "--listen", "127.0.0.1:0", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_cleanly(number):
    """It prints its address, grants, streams, sweeps, and a signal ends it with 0 (§5)."""
    process = start("--store", "memory:", "--term-s", "0.2", "--deduplicated", "/a.B/*")
    try:
        target = process.stdout.readline().strip()
        with grpc.insecure_channel(target) as channel:
            ask = channel.unary_unary(
                PREFIX + "Grant", response_deserializer=pb.GrantReply.FromString
            )
            grant = ask(b"", timeout=20)
            assert (grant.term_ms, list(grant.deduplicated)) == (200, ["/a.B/*"])
            assert grant.heartbeat == pb.HEARTBEAT_STREAM
            beat = channel.stream_stream(
                PREFIX + "KeepAlive", response_deserializer=pb.RenewReply.FromString
            )
            other = pb.RenewRequest(client_id=grant.client_id, token=b"x").SerializeToString()
            assert [reply.refused for reply in beat(iter([other]), timeout=20)] == ["NOT_YOURS"]
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out == ""
    assert "stopped" in err


@pytest.mark.slow
def test_it_says_what_is_wrong_and_leaves():
    """A pattern, a term or an address that cannot be is one line and a failure (§9)."""
    for arguments, message in (
        (("--store", "memory:", "--deduplicated", "nonsense"), "not a method pattern"),
        (("--store", "memory:", "--term-s", "0"), "--term-s must be positive"),
        (("--store", "memory:", "--listen", "256.0.0.1:x"), "lease_server:"),
    ):
        process = start(*arguments)
        _, err = process.communicate(timeout=30)
        assert process.returncode != 0
        assert message in err
        assert "Traceback" not in err


def test_the_package_imports_nothing_of_rifl():
    """lease_server is the ground floor: importing all of it loads no rifl (§2)."""
    code = (
        "import sys, lease_server, lease_server.__main__\n"
        "found = sorted(n for n in sys.modules if n.split('.')[0] in ('rifl', 'curp'))\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
