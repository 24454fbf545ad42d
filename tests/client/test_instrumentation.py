"""Libraries that make their own channel get ours where they are told to (DESIGN §1, §3)."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.testing import serve
from tests.client.protocol_server import ProtocolServer

_LIBRARY = """
import grpc, grpc.aio

def pay(target, request):
    with grpc.insecure_channel(target, options=[("grpc.keepalive_time_ms", 99000)]) as own:
        return type(own), STUB(own).Deposit(request, timeout=20)

async def pay_later(target, request):
    async with grpc.aio.insecure_channel(target) as own:
        return type(own), await STUB(own).Deposit(request, timeout=20)
"""


class _Bank(bank_pb2_grpc.BankServicer):
    def __init__(self) -> None:
        self.runs = 0

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        self.runs += 1
        return bank_pb2.Receipt(entry=self.runs)


@pytest.fixture
def library() -> Any:
    """A module that knows gRPC, and nothing of us."""
    module = types.ModuleType("library")
    module.__dict__["STUB"] = bank_pb2_grpc.BankStub
    exec(_LIBRARY, module.__dict__)  # noqa: S102 - as another package's code
    return module


@pytest.fixture
def service() -> Iterator[Any]:
    """A wrapped server that loses the first answer of each call."""
    bank = _Bank()
    with serve(lambda server: bank_pb2_grpc.add_BankServicer_to_server(bank, server)) as served:
        yield types.SimpleNamespace(address=served.address, bank=bank)


async def test_a_library_gets_our_channel_for_the_named_targets(library: Any, service: Any) -> None:
    """Sync and aio; what it asks for is kept, and other targets have gRPC's own channel."""
    request = bank_pb2.DepositRequest(reference="r", cents=1)
    before = (grpc.insecure_channel, grpc.secure_channel, grpc.aio.insecure_channel)
    bare, _ = library.pay(service.address, request)
    assert not issubclass(bare, rifl.Channel)
    host = service.address.partition(":")[0]
    for targets in (service.address, [f"{host}:*"], {service.address: {"window": 8}}):
        with rifl.instrument(targets, unresolved_limit=4):
            assert library.pay(service.address, request)[0] is rifl.Channel
            assert (await library.pay_later(service.address, request))[0] is rifl.aio.Channel
            with grpc.insecure_channel("localhost:1") as other:
                assert not isinstance(other, rifl.Channel)
            # One of ours has gRPC's own below it, and not one of ours.
            with rifl.connect(service.address) as channel:
                bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=20)
                assert not isinstance(channel._inner, rifl.Channel)
    assert (grpc.insecure_channel, grpc.secure_channel, grpc.aio.insecure_channel) == before


def test_secure_channels_keep_their_credentials(service: Any) -> None:
    """What the library gives to secure_channel goes to ours (DESIGN §1)."""
    credentials = grpc.local_channel_credentials()
    with (
        rifl.instrument(service.address),
        grpc.secure_channel(service.address, credentials, compression=grpc.Compression.Gzip) as own,
    ):
        assert isinstance(own, rifl.Channel)
        assert bank_pb2_grpc.BankStub(own).Deposit(bank_pb2.DepositRequest(), timeout=20).entry
        with grpc.secure_channel("localhost:1", credentials) as other:
            assert not isinstance(other, rifl.Channel)


def test_several_nest_and_are_undone_in_any_order(service: Any) -> None:
    """The newest is asked first; the end of an older one leaves the newer in place."""
    before = grpc.insecure_channel
    outer = rifl.instrument("nowhere:*")
    inner = rifl.instrument(service.address)
    outer.undo()
    outer.undo()
    with grpc.insecure_channel(service.address) as own, grpc.insecure_channel("nowhere:1") as bare:
        assert isinstance(own, rifl.Channel)
        assert not isinstance(bare, rifl.Channel)
    inner.undo()
    with grpc.insecure_channel(service.address) as own:
        assert not isinstance(own, rifl.Channel)
    assert grpc.insecure_channel is before


def test_what_others_patched_is_asked_too(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracer that wraps gRPC's function, before us or after, neither loops nor is lost."""
    asked: list[str] = []
    own = grpc.insecure_channel

    def traced(target: str, *more: Any, **named: Any) -> Any:
        asked.append(target)
        return own(target, *more, **named)

    monkeypatch.setattr(grpc, "insecure_channel", traced)
    request = bank_pb2.DepositRequest(reference="r", cents=1)
    with rifl.instrument(service.address):
        ours = grpc.insecure_channel
        monkeypatch.setattr(grpc, "insecure_channel", lambda *more, **named: ours(*more, **named))
        with grpc.insecure_channel(service.address) as channel:
            assert isinstance(channel, rifl.Channel)
            assert bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=20).entry
    assert asked == [service.address]


def test_settings_that_connect_does_not_have_are_refused() -> None:
    """A misspelt setting is told at once, and nothing is patched."""
    before = grpc.insecure_channel
    for wrong in ({"windows": 8}, {"target": "x"}, {"credentials": None}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            rifl.instrument("x:1", **wrong)
    assert grpc.insecure_channel is before


_REPLACED_FIRST = """
import asyncio, sys, grpc, grpc.aio, rifl
target = sys.argv[1]
grpc.insecure_channel = lambda target, *_: rifl.connect(target)
grpc.secure_channel = lambda target, credentials, *_: rifl.connect(target, credentials)
grpc.aio.insecure_channel = lambda target, *_: rifl.aio.connect(target)
with grpc.insecure_channel(target) as channel:
    print(channel.unary_unary("/test.Service/Echo")(b"sync", timeout=30).decode())
grpc.secure_channel(target, grpc.ssl_channel_credentials()).close()

async def call():
    async with grpc.aio.insecure_channel(target) as channel:
        print((await channel.unary_unary("/test.Service/Echo")(b"aio", timeout=30)).decode())

asyncio.run(call())
"""


def test_grpcs_functions_may_be_replaced_before_a_channel_of_ours_was_opened() -> None:
    """By hand, in a program whose first channel that is: gRPC's own is opened beneath it."""
    with ProtocolServer(lambda arrival, context: arrival.request) as server:
        command = [sys.executable, "-c", _REPLACED_FIRST, server.target]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr[-500:]) == ("sync\naio\n", "")
