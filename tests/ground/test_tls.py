"""Servers' certificates: read again, while connections go on (operations)."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import trustme

import sharedlog
from _rifl_ground.tls import ServedCertificate, add_tls_options, wrong_options
from tests.curp.logs import created
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.waiting import until


def _write(folder: Path, name: str, issuer: trustme.CA, said: str = "127.0.0.1") -> list[str]:
    issued = issuer.issue_cert(said)
    issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
    files = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    return ["--tls-certificate", files[0], "--tls-key", files[1]]


def _given(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_tls_options(parser)
    return parser.parse_args(given)


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with who calls."""

    def __init__(self, behavior: Any) -> None:
        self._method = grpc.unary_unary_rpc_method_handler(behavior)

    def service(self, details: Any) -> Any:
        return self._method


def _ask(channel: grpc.Channel) -> Any:
    return channel.unary_unary("/a.B/C")(b"", timeout=20)


def _channel(port: int, authority: trustme.CA, *mine: bytes) -> grpc.Channel:
    own = (("grpc.use_local_subchannel_pool", 1),)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *mine)
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, own)


def _course(port: int, served: ServedCertificate, folder: Path, old: trustme.CA) -> None:
    """A certificate that is renewed twice, the first time badly."""
    new = trustme.CA()
    with _channel(port, old) as before:
        assert _ask(before) == b"answered"
        key = (folder / "mine.key").read_bytes()
        for bad in (b"", trustme.CA().issue_cert("other").private_key_pem.bytes()):
            (folder / "mine.key").write_bytes(bad)
            with structlog.testing.capture_logs() as logs:
                served.read_again()
            assert [each["event"] for each in logs] == ["certificate_not_read"]
            with _channel(port, old) as meanwhile:
                assert _ask(meanwhile) == b"answered"
        (folder / "mine.key").write_bytes(key)
        _write(folder, "mine", new)
        with structlog.testing.capture_logs() as logs:
            served.read_again()
        assert [each["event"] for each in logs] == ["certificate_read"]
        with _channel(port, new) as after:
            assert _ask(after) == b"answered"
        with _channel(port, old) as late, pytest.raises(grpc.RpcError):
            _ask(late)
        # Its connection stays.
        assert _ask(before) == b"answered"


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_certificate_is_read_again_while_connections_go_on(kind: str, tmp_path: Path) -> None:
    """New connections meet the new one; files that cannot be read change nothing."""
    authority = trustme.CA()
    served = ServedCertificate(_given(*_write(tmp_path, "mine", authority)))
    if kind == "sync":
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((Handler(lambda raw, context: b"answered"),))
        port = server.add_secure_port("127.0.0.1:0", served.credentials)
        server.start()
        _course(port, served, tmp_path, authority)
        server.stop(None).wait()
        return

    async def run() -> None:
        async def answer(raw: bytes, context: Any) -> bytes:
            return b"answered"

        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handler(answer),))
        port = server.add_secure_port("127.0.0.1:0", served.credentials)
        await server.start()
        await asyncio.to_thread(_course, port, served, tmp_path, authority)
        await server.stop(None)

    asyncio.run(run())


def test_callers_certificates_are_asked_for_and_renewed_too(tmp_path: Path) -> None:
    """Whose certificates are accepted changes with the file of authorities."""
    authority, others = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    mine = _write(tmp_path, "mine", authority)
    served = ServedCertificate(_given(*mine, "--tls-client-authorities", str(tmp_path / "ca.pem")))
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(lambda raw, context: b"answered"),))
    port = server.add_secure_port("127.0.0.1:0", served.credentials)
    server.start()

    def pair(issuer: trustme.CA) -> tuple[bytes, bytes]:
        issued = issuer.issue_cert("ann")
        return issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()

    for trusted, refused in ((authority, others), (others, authority)):
        with _channel(port, authority, *pair(trusted)) as channel:
            assert _ask(channel) == b"answered"
        for none in ((), pair(refused)):
            with _channel(port, authority, *none) as channel, pytest.raises(grpc.RpcError):
                _ask(channel)
        others.cert_pem.write_to_path(tmp_path / "ca.pem")
        served.read_again()
    server.stop(None).wait()


def _witness(folder: Path) -> list[str]:
    return ["curp.witness", "--listen", "127.0.0.1:0"]


def _replica(folder: Path) -> list[str]:
    url = created(f"sqlite:///{folder}/bank.log?group=bank")
    serve = ["curp", "serve", "examples.replicated_bank.bank:MemoryBank", "--name", "r"]
    return [*serve, "--engine", url, "--listen", f"127.0.0.1:{free_port()}"]


def _log(folder: Path) -> list[str]:
    url = f"sqlite:///{folder}/log.db"
    sharedlog.create(url).close()
    return ["sharedlog", "serve", "--log", url, "--listen", "127.0.0.1:0"]


@pytest.mark.parametrize("command", [_witness, _replica, _log])
def test_a_command_reads_its_certificate_again_at_a_signal(
    command: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    """SIGHUP ends no process that has one: it goes on with the new one."""
    old, new = trustme.CA(), trustme.CA()
    given = [*command(tmp_path), *_write(tmp_path, "mine", old)]
    with started(*given, log=tmp_path / "err") as process:
        port = int(process.line().rpartition(":")[2])

        def met(authority: trustme.CA) -> bool:
            with _channel(port, authority) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=0.5)
                except grpc.FutureTimeoutError:
                    return False
                return True

        until(lambda: met(old), "it listens")
        _write(tmp_path, "mine", new)
        process.send_signal(signal.SIGHUP)
        until(lambda: met(new), "the new one is in use")
        assert not met(old)


def test_without_files_it_is_plaintext() -> None:
    """And options that belong together are told."""
    plain = ServedCertificate(_given())
    plain.read_again()
    assert plain.credentials is None
    assert not wrong_options(_given())
    assert "come together" in wrong_options(_given("--tls-key", "a"))
    assert "needs" in wrong_options(_given("--tls-client-authorities", "a"))
