"""Strangers who reach a group that has no token: they learn no secret (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

import curp
from chaos.sim.group.log import LogStore
from curp._cli.command import main
from curp._group_token import GROUP_TOKEN_KEY, denied_change
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from curp.witness.__main__ import main as witness_main
from tests.curp.logs import created
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

TOKEN = "open sesame"  # noqa: S105 - of these tests


class Spy(curp_pb2_grpc.WitnessServicer):
    """A witness of a stranger's, which takes every start and keeps what it is told."""

    def __init__(self) -> None:
        self.secrets: list[bytes] = []
        self._serves = pb.WitnessStatusReply(mode="unlisted")
        self._server = grpc.server(ThreadPoolExecutor(4))
        curp_pb2_grpc.add_WitnessServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Start(self, request: pb.StartRequest, context: Any) -> pb.StartReply:  # noqa: N802
        self.secrets += [each.secret for each in request.secrets.secrets]
        self._serves = pb.WitnessStatusReply(
            mode="normal", group=request.group, configuration=request.configuration
        )
        return pb.StartReply(verdict=pb.RecordReply.ACCEPTED)

    def Status(self, request: Any, context: Any) -> pb.WitnessStatusReply:  # noqa: N802
        return self._serves

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def spy() -> Iterator[Spy]:
    """A stranger's witness."""
    made = Spy()
    yield made
    made.close()


def _changed(address: str, witness: str, number: int, *metadata: tuple[str, str]) -> Any:
    request = pb.ChangeWitnessesRequest(witnesses=[witness], configuration=number)
    with grpc.insecure_channel(address) as channel:
        change = curp_pb2_grpc.GroupStub(channel).ChangeWitnesses
        return change(request, timeout=30, metadata=metadata)


@pytest.mark.parametrize("more", [{}, {"open_group": True}], ids=["loopback", "open"])
def test_a_stranger_cannot_have_the_secrets_sent_to_a_witness_of_its_own(
    more: dict[str, Any], spy: Spy
) -> None:
    """With them it would forge clients' tokens, read their answers, and call in their name."""
    with replica(LogStore().engine(), **more) as running:
        running.until_leading()
        number = running.replica.configuration().configuration
        with pytest.raises(grpc.RpcError) as refused:
            _changed(running.address, spy.address, number)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
        assert "--witness" in refused.value.details()  # type: ignore[attr-defined]
        assert running.replica.configuration().configuration == number
        # It can shorten the list, as before.
        with grpc.insecure_channel(running.address) as channel:
            request = pb.ChangeWitnessesRequest(witnesses=[], configuration=number)
            changed = curp_pb2_grpc.GroupStub(channel).ChangeWitnesses(request, timeout=30)
        assert changed.configuration == number + 1
    assert spy.secrets == []


def test_who_has_the_token_names_witnesses_and_so_does_the_replica_itself(spy: Spy) -> None:
    """Those are told the secrets: by its own list, by its own code, by the token."""
    with replica(LogStore().engine(), witnesses=[spy.address]) as running:
        running.until_leading()
        until(lambda: bool(spy.secrets), "its own list names it")
        number = running.replica.configuration().configuration
        # One that was named before may be named again by who has no token.
        assert _changed(running.address, spy.address, number).configuration == number + 1
    spy.secrets.clear()
    with replica(LogStore().engine()) as running:
        running.until_leading()
        number = running.replica.configuration().configuration
        running.replica.change_witnesses([spy.address], number)
        assert spy.secrets
    spy.secrets.clear()
    with replica(LogStore().engine(), group_token=TOKEN) as running:
        running.until_leading()
        number = running.replica.configuration().configuration
        with pytest.raises(grpc.RpcError):
            _changed(running.address, spy.address, number)
        assert spy.secrets == []
        _changed(running.address, spy.address, number, (GROUP_TOKEN_KEY, TOKEN))
        assert spy.secrets


class _Caller:
    def __init__(self, peer: str, *metadata: tuple[str, str]) -> None:
        self._peer, self._metadata = peer, metadata

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> Any:
        return self._metadata


@pytest.mark.parametrize(
    ("peer", "near"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("ipv6:[::1]:5000", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5000", True),
        ("unix:", True),
        ("unix:/run/curp.sock", True),
        ("ipv4:10.0.0.7:5000", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", False),
        ("ipv6:%5B::ffff:10.0.0.7%5D:5000", False),
        ("", False),
    ],
)
def test_without_a_token_callers_of_this_machine_change_a_group(peer: str, near: bool) -> None:
    """Others do if the group is declared open; with a token only who shows it, wherever from."""
    assert (denied_change(_Caller(peer), ()) is None) is near
    assert denied_change(_Caller(peer), (), open_group=True) is None
    shown = _Caller(peer, (GROUP_TOKEN_KEY, TOKEN))
    assert denied_change(shown, (TOKEN,)) is None
    assert denied_change(shown, ("a new one", TOKEN)) is None
    assert denied_change(_Caller(peer), (TOKEN,)) == ("group_token", "missing")
    assert denied_change(shown, ("open says me",)) == ("group_token", "wrong")


@pytest.mark.parametrize(
    ("listen", "more"),
    [
        ("0.0.0.0:7001", ["--advertise", "127.0.0.1:7001"]),
        ("127.0.0.1:7001", ["--advertise", "shop:1"]),
    ],
)
def test_a_replica_needs_a_token_or_a_word_to_be_reached_from_elsewhere(
    listen: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a sidecar, too, where every caller is of this machine: a usage error."""
    serve = ["serve", "tests.curp.replica.ledger:Bank", "--engine", "nowhere://", "--name", "r"]
    with pytest.raises(SystemExit) as ended:
        main([*serve, "--listen", listen, *more])
    assert ended.value.code == 2
    assert "--no-group-token" in capsys.readouterr().err
    # It goes on to what is wrong with the engine.
    assert main([*serve, "--listen", listen, *more, "--no-group-token"]) == 1
    assert main([*serve, "--listen", "127.0.0.1:7001"]) == 1


def test_a_witness_needs_one_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who starts it reads the calls that it holds; a token and no token exclude each other."""
    (tmp_path / "token").write_text("open sesame")
    token = ["--group-token-file", str(tmp_path / "token")]
    for given in ([], [*token, "--no-group-token"]):
        with pytest.raises(SystemExit) as ended:
            witness_main(["--listen", "0.0.0.0:0", *given])
        assert ended.value.code == 2
        assert "--no-group-token" in capsys.readouterr().err
    with pytest.raises(ValueError, match="open_group"):
        curp.Replica(
            "sqlite:///x?group=g", name="r", address="a:1", group_token=TOKEN, open_group=True
        )


def test_an_open_group_says_so() -> None:
    """An event: every client that reaches a replica can stop the group."""
    with structlog.testing.capture_logs() as logs:
        for more in ({}, {"open_group": True}):
            made = curp.Replica(LogStore().engine(), name="r", address="a:1", **more)  # type: ignore[arg-type]
            made.close()
    assert [each["address"] for each in logs if each["event"] == "no_group_token"] == ["a:1"]


@pytest.mark.parametrize(
    ("more", "event"),
    [(["--no-group-token"], "no_group_token"), (["--group-token-file"], "token_over_plaintext")],
)
def test_commands_that_are_reached_from_elsewhere_say_what_that_costs(
    more: list[str], event: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before they listen, which no process can at this address."""
    (tmp_path / "token").write_text(TOKEN)
    given = [*more, *([str(tmp_path / "token")] if more == ["--group-token-file"] else [])]
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")
    serve = ["serve", "examples.replicated_bank.bank:MemoryBank", "--engine", url, "--name", "r"]
    listen = ["--listen", "256.0.0.1:7001"]
    assert main([*serve, *listen, "--advertise", "127.0.0.1:7001", *given]) == 1
    assert event in capsys.readouterr().err
    assert witness_main([*listen, *given]) == 1
    assert event in capsys.readouterr().err
