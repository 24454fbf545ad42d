"""``python -m curp.witness`` as a real process: killed, restarted, refused (DESIGN §7, 2)."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
import trustme

from curp._core.witness_table import WitnessVerdict, group_of_log
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessClient, WitnessJournal
from curp.witness.__main__ import main
from lease_server._tokens import Secret, make_token, verify
from rifl.v1 import rifl_pb2
from tests.helpers.processes import Process

pytestmark = pytest.mark.slow

SECRET = Secret(1, b"s" * 32)
SECRETS = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=1, secret=SECRET.value)])
WAIT_S = 20.0
LOG = 0xA
GROUP = group_of_log("g", LOG)
ACCEPTED, OTHER = WitnessVerdict.ACCEPTED, WitnessVerdict.OTHER_CONFIGURATION


def witness(log: Path, *arguments: str) -> tuple[Process, str]:
    process = Process("curp.witness", "--listen", "127.0.0.1:0", *arguments, log=log)
    return process, process.line()


def start(client: WitnessClient, configuration: int) -> WitnessVerdict:
    return client.start(GROUP, configuration, SECRETS, [], timeout_s=WAIT_S)


def record(channel: grpc.Channel, seq: int, configuration: int, token: bytes = b"") -> int:
    header = rifl_pb2.CallHeader(client_id=5, token=token or make_token(SECRET, 5), seq=seq)
    call = pb.WitnessedCall(header=header.SerializeToString(), method="/s/M", conflict_keys=[seq])
    ask = channel.unary_unary(
        "/curp.v1.Witness/Record",
        request_serializer=pb.RecordRequest.SerializeToString,
        response_deserializer=pb.RecordReply.FromString,
    )
    return ask(
        pb.RecordRequest(configuration=configuration, call=call, log=LOG), timeout=WAIT_S
    ).verdict


@pytest.mark.parametrize("remembers", [True, False])
def test_a_killed_witness_comes_back_useless_until_listed_anew(
    tmp_path: Path, remembers: bool
) -> None:
    """Invariant 2: after SIGKILL neither records nor reads under the number it served."""
    arguments = ("--data-dir", str(tmp_path / "data")) if remembers else ()
    process, address = witness(tmp_path / "log", *arguments)
    try:
        with WitnessClient(address) as client, grpc.insecure_channel(address) as channel:
            assert start(client, 5) is ACCEPTED
            assert record(channel, 1, 5) == ACCEPTED
            process.kill()
    finally:
        process.close()
    process, address = witness(tmp_path / "log", *arguments)
    try:
        with WitnessClient(address) as client, grpc.insecure_channel(address) as channel:
            status = client.status(timeout_s=WAIT_S)
            assert (status.mode, status.held) == ("unlisted", 0)
            assert status.configuration == (5 if remembers else 0)
            if remembers:
                assert client.freeze(GROUP, 5, timeout_s=WAIT_S) == (OTHER, [])
                assert start(client, 5) is OTHER
            else:
                assert client.freeze("", 0, timeout_s=WAIT_S) == (OTHER, [])
            assert client.freeze(GROUP, 5, timeout_s=WAIT_S)[0] is not ACCEPTED
            refresh = client.start(GROUP, 5, SECRETS, [], refresh=True, timeout_s=WAIT_S)
            assert refresh is not ACCEPTED
            assert start(client, 6) is ACCEPTED
            assert record(channel, 1, 6) == ACCEPTED
            verdict, calls = client.freeze(GROUP, 6, timeout_s=WAIT_S)
            assert (verdict, len(calls)) == (ACCEPTED, 1)
            watching = channel.unary_stream("/curp.v1.Witness/Watch")(b"", timeout=WAIT_S)
            watching.initial_metadata()
            assert process.terminate() == 0
            # Its end, and not a call that a stop had to cut off.
            assert list(watching) == []
            assert "stopped" in process.errors()
    finally:
        process.close()


def test_a_late_start_of_an_old_number_is_no_answer_for_the_one_in_force(tmp_path: Path) -> None:
    """Killed and back without a journal, it never says that it holds nothing (2 and 5)."""
    process, address = witness(tmp_path / "log")
    try:
        with WitnessClient(address) as client, grpc.insecure_channel(address) as channel:
            assert start(client, 5) is ACCEPTED
            assert record(channel, 1, 5) == ACCEPTED
            process.kill()
    finally:
        process.close()
    process, address = witness(tmp_path / "log")
    try:
        with WitnessClient(address) as client:
            # Of a leader that was deposed long ago.
            assert start(client, 3) is ACCEPTED
            assert client.freeze(GROUP, 5, timeout_s=WAIT_S) == (OTHER, [])
            assert client.freeze(GROUP, 3, timeout_s=WAIT_S) == (ACCEPTED, [])
            assert client.freeze(GROUP, 5, timeout_s=WAIT_S) == (OTHER, [])
    finally:
        process.close()


def test_only_the_groups_replicas_may_freeze(tmp_path: Path) -> None:
    """Whoever could freeze a witness could stop the group, and read its calls (DESIGN §9)."""
    shared = "of the group"
    token = tmp_path / "token"
    token.write_text(f"{shared}\n")
    process, address = witness(tmp_path / "log", "--group-token-file", str(token))
    try:
        with WitnessClient(address, group_token=shared) as client:
            assert start(client, 1) is ACCEPTED
            with (
                WitnessClient(address) as other,
                WitnessClient(address, group_token=shared[1:]) as wrong,
            ):
                for stranger in (other, wrong):
                    for ask in (
                        lambda stranger=stranger: start(stranger, 2),
                        lambda stranger=stranger: stranger.freeze(GROUP, 1, timeout_s=WAIT_S),
                        lambda stranger=stranger: stranger.collect(GROUP, 1, [], timeout_s=WAIT_S),
                    ):
                        with pytest.raises(grpc.RpcError) as refused:
                            ask()
                        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
            with grpc.insecure_channel(address) as channel:
                assert record(channel, 1, 1) == ACCEPTED
                with pytest.raises(grpc.RpcError) as refused:
                    record(channel, 1, 1, token=b"x" * 20)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
            assert client.collect(GROUP, 1, [], timeout_s=WAIT_S) == (ACCEPTED, [])
    finally:
        process.close()


@pytest.fixture
def pems(tmp_path: Path) -> dict[str, Path]:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    paths = {name: tmp_path / f"{name}.pem" for name in ("key", "certificate", "authority")}
    server.private_key_pem.write_to_path(str(paths["key"]))
    server.cert_chain_pems[0].write_to_path(str(paths["certificate"]))
    authority.cert_pem.write_to_path(str(paths["authority"]))
    client = authority.issue_cert("alice", common_name="alice")
    paths["client"] = tmp_path / "client.pem"
    client.private_key_and_cert_chain_pem.write_to_path(str(paths["client"]))
    return paths


def test_tokens_are_bound_to_peers_as_on_replicas(tmp_path: Path, pems: dict[str, Path]) -> None:
    """Over mutual TLS a witness sees the peer that the leader sees (invariant 2; DESIGN §3)."""
    process, address = witness(
        tmp_path / "log",
        *("--tls-key", str(pems["key"]), "--tls-certificate", str(pems["certificate"])),
        *("--tls-client-authorities", str(pems["authority"])),
        *("--peer-property", "x509_common_name"),
    )
    whole = pems["client"].read_bytes()
    credentials = grpc.ssl_channel_credentials(pems["authority"].read_bytes(), whole, whole)
    peer = b"".join(len(part).to_bytes(4, "big") + part for part in (b"x509_common_name", b"alice"))
    bound = make_token(SECRET, 5, peer)
    assert verify([SECRET], 5, bound, peer)
    try:
        with (
            WitnessClient(address, credentials=credentials) as client,
            grpc.secure_channel(address, credentials) as channel,
        ):
            assert start(client, 1) is ACCEPTED
            assert record(channel, 1, 1, token=bound) == ACCEPTED
            with pytest.raises(grpc.RpcError):
                record(channel, 2, 1, token=make_token(SECRET, 5, b"somebody else"))
            assert [call.peer for call in client.freeze(GROUP, 1, timeout_s=WAIT_S)[1]] == [peer]
    finally:
        process.close()


def test_it_says_what_is_wrong_and_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A held or damaged directory, a taken port, no token: one line and a failure (§9)."""
    held, damaged, empty = tmp_path / "held", tmp_path / "damaged", tmp_path / "empty"
    journal = WitnessJournal(held)
    damaged.mkdir()
    (damaged / "witness.journal").write_text("00000000 nonsense\n")
    empty.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, message in (
            (("127.0.0.1:0", "--data-dir", str(held)), "another witness has"),
            (("127.0.0.1:0", "--data-dir", str(damaged)), "list it anew"),
            ((f"127.0.0.1:{taken.getsockname()[1]}",), "bind"),
            (("127.0.0.1:0", "--group-token-file", str(empty)), "is empty"),
        ):
            assert main(["--listen", *arguments]) == 1
            assert message in capsys.readouterr().err
    journal.close()
    for arguments, message in (
        (("--slots", "0"), "slots=0"),
        (("--tls-key", "x"), "come together"),
        (("--tls-client-authorities", "x"), "needs --tls-certificate"),
    ):
        with pytest.raises(SystemExit):
            main(["--listen", "127.0.0.1:0", *arguments])
        assert message in capsys.readouterr().err
