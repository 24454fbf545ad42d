"""No sender puts a secret on a connection that is not encrypted (DESIGN §5, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import trustme

import curp
import rifl
import rifl.aio
import sharedlog
from _rifl_ground.plaintext import VARIABLE, is_loopback, why_not_sent
from curp._cli.command import main
from curp.v1 import curp_pb2
from curp.witness._client import WitnessClient
from sharedlog._cli.command import main as log_main
from sharedlog._player.link import Link
from sharedlog._service import server as log_server
from sharedlog.v1 import target_pb2
from tests.curp.logs import created
from tests.helpers.wire import SECRET, Wire


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.10:1", True),
        ("[::1]:1", True),
        ("::1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("localhost:1", True),
        ("LOCALHOST", True),
        ("unix:/run/a", True),
        ("unix-abstract:a", True),
        ("dns:localhost:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("ipv6:[::1]:1", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("dns://10.0.0.1/localhost:1", False),
        ("dns://localhost/shop:1", False),
        ("localhost.shop:1", False),
        ("127.0.0.1.shop:1", False),
        ("shop:127", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("vsock:2:1", False),
        (":1", False),
        ("", False),
        ("[::1:1", False),
        ("[::1]x:1", False),
    ],
)
def test_loopback_is_told_by_the_target_as_it_is_written(target: str, expected: bool) -> None:
    """A literal address, localhost or a unix socket: no name is resolved."""
    assert is_loopback(target) is expected


def test_one_name_permits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials count as encryption; the variable permits plaintext to a process."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "plaintext_secrets" in why_not_sent("a token", "shop:1", secure=False)
    assert not why_not_sent("a token", "shop:1", secure=True)
    assert not why_not_sent("a token", "shop:1", secure=False, allowed=True)
    for value, sent in (("0", False), ("yes", False), ("1", True)):
        monkeypatch.setenv(VARIABLE, value)
        assert (not why_not_sent("a token", "shop:1", secure=False)) is sent


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A server that everything arrives at."""
    made = Wire()
    yield made
    made.close()


def _session(target: str, allowed: bool, folder: Path) -> None:
    given = {"session": "s", "secret": SECRET, "plaintext_secrets": allowed}
    with rifl.connect(target, **given) as channel:  # type: ignore[arg-type]
        channel.session.open(timeout=10)


def _closed_session(target: str, allowed: bool, folder: Path) -> None:
    given = {"session": "s", "secret": SECRET, "plaintext_secrets": allowed}
    with rifl.connect(target, **given) as channel:  # type: ignore[arg-type]
        channel.session.close(timeout=10)


def _aio_session(target: str, allowed: bool, folder: Path) -> None:
    async def run() -> None:
        given = {"session": "s", "secret": SECRET, "plaintext_secrets": allowed}
        async with rifl.aio.connect(target, **given) as channel:  # type: ignore[arg-type]
            await channel.session.open(timeout=10)

    asyncio.run(run())


def _one_of_several(target: str, allowed: bool, folder: Path) -> None:
    # The first one is on this machine, where nothing listens.
    given = {"session": "s", "secret": SECRET, "plaintext_secrets": allowed}
    with rifl.connect(f"127.0.0.1:1,{target}", **given) as channel:  # type: ignore[arg-type]
        channel.session.open(timeout=10)


def _token_file(folder: Path) -> str:
    (folder / "token").write_text(SECRET)
    return str(folder / "token")


def _log(target: str, allowed: bool, folder: Path) -> None:
    more = "&plaintext_secrets=1" if allowed else ""
    sharedlog.open(f"grpc://{target}?token_file={_token_file(folder)}{more}").close()


def _log_command(target: str, allowed: bool, folder: Path) -> None:
    more = ["--plaintext-secrets"] if allowed else []
    url = f"grpc://{target}?token_file={_token_file(folder)}"
    raise SystemExit(log_main(["streams", url, "--timeout", "1s", *more]))


def _target(target: str, allowed: bool, folder: Path) -> None:
    declared = sharedlog.Target(
        name="shop", address=target, streams=["a"], token=SECRET, plaintext_secrets=allowed
    )

    async def run() -> None:
        await Link(declared).connect(target_pb2.ConnectRequest())

    asyncio.run(run())


def _witness(target: str, allowed: bool, folder: Path) -> None:
    with WitnessClient(target, group_token=SECRET, plaintext_secrets=allowed) as client:
        client.status(timeout_s=10)


def _frozen_witness(target: str, allowed: bool, folder: Path) -> None:
    with WitnessClient(target, group_token=SECRET, plaintext_secrets=allowed) as client:
        client.freeze("g", 1, timeout_s=10)


def _started_witness(target: str, allowed: bool, folder: Path) -> None:
    # The secret that signs clients' tokens, of a group that has no token.
    secret = curp_pb2.SecretsPut.Secret(key_id=0, secret=SECRET.encode())
    with WitnessClient(target, plaintext_secrets=allowed) as client:
        client.start("g", 1, curp_pb2.SecretsPut(secrets=[secret]), [], timeout_s=10)


def _operator(target: str, allowed: bool, folder: Path) -> None:
    more = ["--plaintext-secrets"] if allowed else []
    code = main(["status", target, "--group-token-file", _token_file(folder), *more])
    raise SystemExit(code)


CALLS = [_session, _closed_session, _aio_session, _one_of_several]
CALLS += [_witness, _frozen_witness, _started_witness]
SENDERS = [*CALLS, _log, _log_command, _target, _operator]


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_a_secret_leaves_no_process_in_plaintext_unless_that_is_allowed(
    send: Callable[[str, bool, Path], None],
    allowed: bool,
    wire: Wire,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused by who sends, before anything leaves: not executed, or a usage error."""
    # Commands set it for their process.
    monkeypatch.setenv(VARIABLE, "0")
    # This machine, by a name that says no such thing.
    target = f"0.0.0.0:{wire.port}"
    with pytest.raises((grpc.RpcError, sharedlog.LogError, SystemExit)) as raised:
        send(target, allowed, tmp_path)
    assert wire.shown is allowed, wire.heard
    if allowed:
        return
    error: Any = raised.value
    if send in CALLS:
        assert isinstance(error, rifl.CallError)
        assert error.outcome is rifl.Outcome.NOT_EXECUTED
        assert "plaintext_secrets" in str(error)
    elif isinstance(error, SystemExit):
        assert error.code == 2
    else:
        assert isinstance(error, sharedlog.InvalidRequest)


@pytest.mark.parametrize("send", [_session, _log, _target, _witness, _operator])
def test_loopback_needs_no_permission(
    send: Callable[[str, bool, Path], None],
    wire: Wire,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing changes for processes of one machine."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises((grpc.RpcError, sharedlog.LogError, SystemExit)):
        send(f"127.0.0.1:{wire.port}", False, tmp_path)
    assert wire.shown


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of a certificate and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    issued = trustme.CA().issue_cert("operator")
    issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def test_a_certificate_alone_asks_for_tls(
    wire: Wire, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    """By the system's authorities: no plaintext is spoken, on this machine neither."""
    address, token = f"127.0.0.1:{wire.port}", _token_file(tmp_path)
    tls = ["--tls-certificate", certificate[0], "--tls-key", certificate[1]]
    asked = ["witness", "add", address, "127.0.0.1:2", "--group-token-file", token]
    assert main([*asked, *tls]) == 1
    given = {"name": "shop", "address": address, "streams": ["a"], "token": SECRET}

    async def run() -> None:
        files = {"certificate": certificate[0], "key": certificate[1]}
        await Link(sharedlog.Target(**given, **files)).connect(target_pb2.ConnectRequest())  # type: ignore[arg-type]

    with pytest.raises(sharedlog.LogError):
        asyncio.run(run())
    with pytest.raises(sharedlog.InvalidRequest, match="together"):
        sharedlog.Target(**given, key=certificate[1]).credentials()  # type: ignore[arg-type]
    assert not wire.heard


def test_a_replica_does_not_begin_with_a_witness_that_it_may_not_tell_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own command line names it: a usage error, before the log is opened."""
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")
    with pytest.raises(ValueError, match="plaintext_secrets"):
        curp.Replica(url, name="r", address="127.0.0.1:1", witnesses=["shop:2"])
    serve = ["serve", "tests.curp.replica.ledger:Bank", "--engine", url, "--name", "r"]
    with pytest.raises(SystemExit) as ended:
        main([*serve, "--listen", "127.0.0.1:0", "--witness", "shop:2"])
    assert ended.value.code == 2
    assert "is not sent to shop:2" in capsys.readouterr().err


@pytest.mark.parametrize(("tokens", "told"), [({"ann": SECRET.encode()}, True), (None, False)])
def test_a_server_with_tokens_says_that_they_come_in_plaintext(
    tokens: dict[str, bytes] | None, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event at start, beyond loopback."""
    monkeypatch.setattr(log_server, "is_loopback", lambda _: False)

    async def run(log: Any) -> None:
        server = log_server.LogServer(
            log, log._place, log_server.Options("127.0.0.1:0", tokens=tokens)
        )
        await server.start()
        await server.stop(0.0)

    with (
        sharedlog.create(f"sqlite:///{tmp_path}/log.db") as log,
        structlog.testing.capture_logs() as logs,
    ):
        asyncio.run(run(log))
    assert ("token_over_plaintext" in [each["event"] for each in logs]) is told
