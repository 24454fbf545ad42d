"""A group whose every hop is mutual TLS, and what its token keeps others from (DESIGN §7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import curp
import rifl
from curp._cli.command import main
from curp._group_token import GROUP_TOKEN_KEY
from curp.client import statistics
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from curp.witness._client import WitnessClient
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.logs import created
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0


class _Group:
    """One replica and one witness, each with a certificate of its own, and a client's."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.authority = trustme.CA()
        self._write("authority", self.authority.cert_pem.bytes())
        for name in ("replica", "witness"):
            self._issue(name, self.authority.issue_cert("127.0.0.1", common_name="bank-group"))
        self._issue("alice", self.authority.issue_cert("alice", common_name="alice"))
        self._write("token", b"open sesame\n")
        url = created(f"sqlite:///{directory}/bank.log?group=bank")
        self.witness = self._start("witness", "witness", "--listen", "127.0.0.1:0")
        self.replica = self._start(
            "replica",
            *("serve", "tests.curp.replica.ledger:Bank", "--name", "r1"),
            *("--engine", url, "--listen", f"127.0.0.1:{free_port()}", "--witness", self.witness),
            *("--witness-authorities", self.path("authority")),
            *("--conflict-key", "/bank.v1.Bank/Deposit=account", "--reflection"),
        )

    def path(self, name: str) -> str:
        """Where a certificate, key or token is."""
        return str(self._directory / f"{name}.pem")

    def options(self, *, token: bool = True) -> list[str]:
        """What an operator gives the command: alice's certificate, and the token."""
        given = ["--tls-authorities", self.path("authority")]
        given += ["--tls-certificate", self.path("alice"), "--tls-key", self.path("alice-key")]
        return given + (["--group-token-file", self.path("token")] if token else [])

    def credentials(self) -> grpc.ChannelCredentials:
        """Alice's."""
        key, certificate, roots = (
            Path(self.path(name)).read_bytes() for name in ("alice-key", "alice", "authority")
        )
        return grpc.ssl_channel_credentials(roots, key, certificate)

    def _start(self, name: str, *arguments: str) -> str:
        security = ("--tls-certificate", self.path(name), "--tls-key", self.path(f"{name}-key"))
        security += ("--tls-client-authorities", self.path("authority"))
        security += ("--group-token-file", self.path("token"))
        security += ("--peer-property", "x509_common_name")
        process: Process = self._stack.enter_context(
            started("curp", *arguments, *security, log=self._directory / f"{name}.err")
        )
        return process.line(_DEADLINE_S)

    def _issue(self, name: str, issued: trustme.LeafCert) -> None:
        self._write(name, b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        self._write(f"{name}-key", issued.private_key_pem.bytes())

    def _write(self, name: str, content: bytes) -> None:
        Path(self.path(name)).write_bytes(content)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[_Group]:
    """A group run from the command line."""
    with contextlib.ExitStack() as stack:
        yield _Group(tmp_path, stack)


def test_only_members_reach_the_group_and_only_with_its_token_change_it(
    group: _Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls take one round trip over mutual TLS; a stranger is refused (DESIGN §5, §7)."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments)
        told = capsys.readouterr()
        return code, told.out + told.err

    secured = group.options()
    until(
        lambda: f"witness {group.witness}  normal" in run("status", group.replica, *secured)[1],
        "it leads with its witness",
        _DEADLINE_S,
    )
    with rifl.connect(group.replica, credentials=group.credentials()) as channel:
        stub = bank_pb2_grpc.BankStub(channel)

        def fast() -> bool:
            request = bank_pb2.DepositRequest(reference="r", account="alice", cents=5)
            stub.Deposit(request, timeout=30)
            counted = statistics(channel)
            return counted is not None and counted.fast > 0

        until(fast, "an answer takes one round trip", _DEADLINE_S)

    # Without a certificate nothing is heard; with one, and no token, nothing is changed.
    assert run("status", group.replica)[0] == 1
    bare = group.options(token=False)
    assert run("status", group.replica, *bare)[0] == 1
    with grpc.secure_channel(group.replica, group.credentials()) as member:
        named = curp_pb2_grpc.GroupStub(member).Configuration(pb.ConfigurationRequest(), timeout=30)
        assert named.leader == group.replica
        with pytest.raises(grpc.RpcError) as refused:
            curp_pb2_grpc.GroupStub(member).Status(pb.GroupStatusRequest(), timeout=30)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
        services = reflection_pb2.ServerReflectionRequest(list_services="")
        reflect = reflection_pb2_grpc.ServerReflectionStub(member).ServerReflectionInfo
        with pytest.raises(grpc.RpcError) as refused:
            list(reflect(iter([services]), timeout=30))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
        shown = ((GROUP_TOKEN_KEY, Path(group.path("token")).read_text().strip()),)
        (listed,) = reflect(iter([services]), timeout=30, metadata=shown)
        assert listed.HasField("list_services_response")
    removal = ("witness", "remove", group.replica, group.witness)
    ending = ("end-session", group.replica, "nightly")
    rotation = ("rotate-secret", group.replica)
    for change in (removal, ("transfer", group.replica), ending, rotation):
        code, told = run(*change, *bare)
        assert code == 1
        assert "token" in told
    with WitnessClient(group.witness, credentials=group.credentials()) as stranger:
        for ask in (
            lambda: stranger.freeze("bank", 1, timeout_s=30.0),
            lambda: stranger.collect("bank", 1, [], timeout_s=30.0),
            lambda: stranger.start("bank", 9, pb.SecretsPut(), [], timeout_s=30.0),
            lambda: stranger.status(timeout_s=30.0),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                ask()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
    with grpc.insecure_channel(group.witness) as plain, pytest.raises(grpc.RpcError):
        curp_pb2_grpc.WitnessStub(plain).Status(pb.WitnessStatusRequest(), timeout=60)

    assert run(*ending, *secured)[0] == 1
    with rifl.connect(group.replica, credentials=group.credentials(), session="nightly") as channel:
        stub = bank_pb2_grpc.BankStub(channel)
        request = bank_pb2.DepositRequest(reference="s", account="alice", cents=5)
        stub.Deposit(request, timeout=30, metadata=(rifl.key("s"),))
        code, told = run(*ending, *secured)
        assert (code, told.split()) == (0, ["ended:", str(channel.session.client_id)])
        with pytest.raises(rifl.CallError) as over:
            stub.Deposit(request, timeout=30, metadata=(rifl.key("another"),))
        assert over.value.reason == "SESSION_CLOSED"

    assert [run(*rotation, *secured) for _ in range(2)] == [(0, "key_id: 1\n"), (0, "key_id: 2\n")]
    code, told = run(*removal, *secured)
    assert (code, "witnesses none" in told) == (0, True)
    code, told = run("witness", "add", group.replica, group.witness, *secured)
    assert (code, f"witnesses {group.witness}" in told) == (0, True)


def test_options_that_belong_together_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key without its certificate is a usage error, an unreadable file is named (DESIGN §9)."""
    with pytest.raises(SystemExit):
        main(["status", "127.0.0.1:1", "--tls-key", "x"])
    assert "come together" in capsys.readouterr().err
    assert main(["status", "127.0.0.1:1", "--tls-authorities", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
    with pytest.raises(ValueError, match="protects nothing"):
        curp.Replica("sqlite:///x?group=g", name="r", address="a:1", group_token="")
