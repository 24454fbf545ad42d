"""Policies of methods, by option and in Python, and their refusal at start (DESIGN §1)."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl import Kind, MethodPolicy, PolicyError, testing
from rifl._grpc.status import read_error_info
from rifl._stores import UnsupportedStore
from rifl.v1 import options_pb2
from tests.calls.services import Kinds
from tests.helpers.raw import RawClient
from tests.helpers.servers import serve

LEVELS = descriptor_pb2.MethodOptions
BANK = bank_pb2.DESCRIPTOR.services_by_name["Bank"]
_numbers = itertools.count()


def service(**options: Any) -> Any:
    """Describe a service whose method M has the option, in a file of its own."""
    number = next(_numbers)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"t{number}.proto", package=f"t{number}", syntax="proto3"
    )
    file.dependency.append("rifl/v1/options.proto")
    message = file.message_type.add(name="Request")
    message.field.add(name="order_id", number=1, type=9, label=1)
    message.field.add(name="tags", number=2, type=9, label=3)
    message.field.add(name="ratio", number=3, type=1, label=1)
    message.field.add(name="inner", number=4, type=11, label=1, type_name=f".t{number}.Request")
    streams = options.pop("streams", (False, False))
    level = options.pop("level", None)
    method = file.service.add(name="S").method.add(
        name="M",
        input_type=f".t{number}.Request",
        output_type=f".t{number}.Request",
        client_streaming=streams[0],
        server_streaming=streams[1],
    )
    if level is not None:
        method.options.idempotency_level = level
    if options:
        extension: Any = options_pb2.exactly_once
        method.options.Extensions[extension].CopyFrom(options_pb2.ExactlyOnce(**options))
    descriptor_pool.Default().Add(file)
    return descriptor_pool.Default().FindServiceByName(f"t{number}.S")


def policy_of(described: Any, **more: Any) -> MethodPolicy | None:
    with rifl.Deduplicator("memory:", services=[described], **more) as dedup:
        return dedup._policies.find(f"/{described.full_name}/M")


@pytest.mark.parametrize(
    ("options", "more", "policy"),
    [
        ({"level": LEVELS.NO_SIDE_EFFECTS}, {}, None),
        ({"level": LEVELS.NO_SIDE_EFFECTS}, {"default": "idempotent"}, None),
        ({"level": LEVELS.IDEMPOTENT}, {}, MethodPolicy(kind="idempotent")),
        ({"level": LEVELS.IDEMPOTENCY_UNKNOWN}, {}, MethodPolicy()),
        ({"level": LEVELS.NO_SIDE_EFFECTS, "required": True}, {}, MethodPolicy(required=True)),
        ({"level": LEVELS.IDEMPOTENT}, {"methods": {"*": "plain"}}, MethodPolicy()),
    ],
)
def test_the_standard_idempotency_level_counts_where_no_option_of_rifls_does(
    options: Any, more: Any, policy: MethodPolicy | None
) -> None:
    """Connect and Buf set it; rifl's option and Python outweigh it (DESIGN §1)."""
    assert policy_of(service(**options), **more) == policy


@pytest.mark.parametrize("streams", [(True, False), (False, True), (True, True)])
def test_the_standard_idempotency_level_declares_no_stream(streams: Any) -> None:
    """A stream's messages would be kept in memory: rifl's option alone asks for it (DESIGN §1)."""
    described = service(level=LEVELS.IDEMPOTENT, streams=streams)
    with rifl.Deduplicator("memory:", services=[described]) as dedup:
        dedup.check()
        assert not dedup._policies.marked(f"/{described.full_name}/M")


def test_an_option_is_the_methods_policy() -> None:
    """Each field of the option is the policy's of the same meaning (DESIGN §1)."""
    described = service(
        required=True,
        retention={"seconds": 90},
        unrecorded=["ABORTED"],
        kind=options_pb2.ExactlyOnce.IDEMPOTENT,
        max_response_bytes=1000,
        key_field="inner.order_id",
        buffer_bytes=0,
        claim=options_pb2.ExactlyOnce.CLAIM_ALWAYS,
    )
    assert policy_of(described) == MethodPolicy(
        kind=Kind.IDEMPOTENT,
        required=True,
        retention_s=90.0,
        unrecorded=frozenset({10}),
        max_response_bytes=1000,
        key_field="inner.order_id",
        buffer_bytes=0,
        claim="always",
    )
    assert policy_of(service(kind=options_pb2.ExactlyOnce.NEVER)) is None


def test_python_outweighs_the_option_and_the_option_the_default() -> None:
    """A declaration that fits hides the option; the default does not (rifl.Deduplicator)."""
    described = service(kind=options_pb2.ExactlyOnce.IDEMPOTENT)
    method = f"/{described.full_name}/M"
    found = policy_of(described, default=None)
    assert found is not None
    assert found.kind is Kind.IDEMPOTENT
    for pattern in (method, f"/{described.full_name}/*", "*"):
        found = policy_of(described, methods={pattern: "plain"})
        assert found is not None
        assert found.kind is Kind.PLAIN


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": (True, True), "required": True}, "bidirectional"),
        ({"unrecorded": ["ABORTTED"]}, "ABORTTED"),
        ({"unrecorded": ["OK"]}, "OK cannot"),
        ({"key_field": "oder_id"}, "no field oder_id"),
        ({"key_field": "inner.x"}, "no field inner.x"),
        ({"key_field": "tags"}, "cannot be a key"),
        ({"key_field": "ratio"}, "cannot be a key"),
        ({"key_field": "order_id", "streams": (True, False)}, "stream"),
        ({"retention": {"seconds": -1}}, "retention"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(options: Any, words: str) -> None:
    """With a clear word, before any call (DESIGN §1)."""
    with pytest.raises(PolicyError, match=words):
        policy_of(service(**options))


def test_atomic_by_option_needs_a_store_with_transactions() -> None:
    """Refused at start, wherever it was declared (DESIGN §1)."""
    with pytest.raises(ValueError, match="needs a store with transactions"):
        policy_of(service(kind=options_pb2.ExactlyOnce.ATOMIC))
    with rifl.Deduplicator("memory:") as dedup, pytest.raises(PolicyError, match="no transactions"):
        dedup.check(services=[service(kind=options_pb2.ExactlyOnce.ATOMIC)])


def test_an_answer_that_is_a_stream_cannot_be_atomic(tmp_path: Any) -> None:
    """No one transaction holds its record (DESIGN §6)."""
    described = service(kind=options_pb2.ExactlyOnce.ATOMIC, streams=(False, True))
    with pytest.raises(PolicyError, match="stream"):
        rifl.Deduplicator(f"sqlite:///{tmp_path}/s.db", services=[described])


def test_a_policy_of_a_method_that_does_not_exist_is_refused() -> None:
    """Whether the service was passed, is imported, or is found on the server (DESIGN §1)."""
    with pytest.raises(PolicyError, match="no method Depositt"):
        rifl.Deduplicator("memory:", methods={"/bank.v1.Bank/Depositt": "plain"})
    with pytest.raises(PolicyError, match="no method X"):
        rifl.Deduplicator("memory:", services=[BANK], methods={"/bank.v1.Bank/X": "plain"})
    with rifl.Deduplicator("memory:", methods={"/bank.v1.Bnak/Deposit": "plain"}) as dedup:
        from concurrent.futures import ThreadPoolExecutor

        server = grpc.server(ThreadPoolExecutor(1))
        bank_pb2_grpc.add_BankServicer_to_server(bank_pb2_grpc.BankServicer(), server)
        with pytest.raises(PolicyError, match=r"no service bank\.v1\.Bnak"):
            dedup.add_to_server(server)
    with pytest.raises(PolicyError, match="takes no keys"):
        policy_of(service(key_field="order_id"), keys_from="nobody")


def test_a_required_method_refuses_calls_without_identity() -> None:
    """BAD_HEADER, whatever the kind of call, and nothing runs (DESIGN §4)."""
    kinds = Kinds()
    with (
        testing.serve(
            kinds.adder("sync"),
            methods={"/t.Kinds/Collect": MethodPolicy(required=True)},
            default=MethodPolicy(required=True),
        ) as served,
        served.plain_channel() as channel,
    ):
        unary = channel.unary_unary("/t.Kinds/Unary").future(b"x", 10)
        stream = channel.stream_unary("/t.Kinds/Collect").future(iter([b"x"]), 10)
        for call in (unary, stream):
            with pytest.raises(grpc.RpcError):
                call.result()
            info = read_error_info(tuple(call.trailing_metadata()))
            assert info is not None
            assert info[0] == "BAD_HEADER"
    assert kinds.effects == []


class Ledger(bank_pb2_grpc.BankServicer):
    """Counts deposits."""

    def __init__(self) -> None:
        self.deposits: list[str] = []

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        self.deposits.append(request.reference)
        return bank_pb2.Receipt(entry=len(self.deposits))


def test_a_field_of_the_request_is_the_key_of_callers_without_one() -> None:
    """A caller that sends nothing of ours is deduplicated by its own reference (DESIGN §3)."""
    ledger = Ledger()
    methods = {"/bank.v1.Bank/Deposit": MethodPolicy(key_field="reference")}

    def add(server: Any) -> None:
        bank_pb2_grpc.add_BankServicer_to_server(ledger, server)

    with (
        testing.serve(add, methods=methods, keys_from="anyone") as served,
        served.plain_channel() as channel,
    ):
        stub = bank_pb2_grpc.BankStub(channel)
        one = bank_pb2.DepositRequest(reference="r-1", cents=5)
        assert [stub.Deposit(one).entry, stub.Deposit(one).entry] == [1, 1]
        assert stub.Deposit(bank_pb2.DepositRequest(reference="r-2")).entry == 2
        for wrong in ("", "r" * 256):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Deposit(bank_pb2.DepositRequest(reference=wrong))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ledger.deposits == ["r-1", "r-2"]


def test_a_word_that_is_no_kind_is_refused_with_those_there_are() -> None:
    """A misspelt kind is told at start, beside what it may be (rifl.MethodPolicy)."""
    for declared in ({"methods": {"*": "exact"}}, {"default": "exact"}):
        with pytest.raises(PolicyError, match=r"'exact'.*plain, idempotent, atomic"):
            rifl.Deduplicator("memory:", **declared)


def test_a_server_without_the_interceptor_is_refused() -> None:
    """No server says that calls happen once whose calls pass us by (Deduplicator.add_to_server)."""
    with rifl.Deduplicator("memory:") as dedup:
        dedup.aio_interceptor()
        server = grpc.server(ThreadPoolExecutor(1))
        with pytest.raises(PolicyError, match=r"interceptors=\[dedup.interceptor\(\)\]"):
            dedup.add_to_server(server)


async def test_an_aio_server_without_the_interceptor_is_refused() -> None:
    """The same on grpc.aio, for which the sync interceptor does not count."""
    async with rifl.Deduplicator("memory:") as dedup:
        dedup.interceptor()
        server = grpc.aio.server()
        with pytest.raises(PolicyError, match=r"interceptors=\[dedup.aio_interceptor\(\)\]"):
            dedup.add_to_server(server)


def _adder(described: Any, ran: list[bytes]) -> Any:
    """Register a service as generated code does, by both of gRPC's ways."""

    def act(request: bytes, context: Any) -> bytes:
        ran.append(request)
        return b""

    async def act_async(request: bytes, context: Any) -> bytes:
        return act(request, context)

    def add(server: Any) -> None:
        behavior: Any = act_async if isinstance(server, grpc.aio.Server) else act
        handlers: Any = {"M": grpc.unary_unary_rpc_method_handler(behavior)}
        name = described.full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_registered_method_handlers(name, handlers)

    return add


class _Order:
    """Stands for a deduplicator that is added before or after the servicer."""

    def __init__(self, dedup: Any, add: Any, order: str) -> None:
        self._steps = (
            (add, dedup.add_to_server) if order == "before" else (dedup.add_to_server, add)
        )
        self.interceptor = dedup.interceptor
        self.aio_interceptor = dedup.aio_interceptor

    def add_to_server(self, server: Any) -> None:
        """Take both steps."""
        for step in self._steps:
            step(server)


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_an_option_counts_in_any_order(kind: str, order: str) -> None:
    """Whether its servicer is added before ``add_to_server`` or after; grants say it (§1)."""
    described = service(kind=options_pb2.ExactlyOnce.IDEMPOTENT, required=True)
    ran: list[bytes] = []
    method = f"/{described.full_name}/M"
    with rifl.Deduplicator("memory:", default=None) as dedup:
        if (kind, order) == ("aio", "before"):
            # An aio server does not tell what it has.
            dedup.check(services=[described])
        ordered = _Order(dedup, _adder(described, ran), order)
        with (
            serve(kind, (), dedup=ordered) as served,
            rifl.connect(served.address) as channel,
            RawClient(served.address) as client,
        ):
            assert client.call(method, b"", bare=True).reason == "BAD_HEADER"
            assert channel.unary_unary(method)(b"x", timeout=10) == b""
            assert method in channel._client.lease.methods  # type: ignore[union-attr]
    assert ran == [b"x"]


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_an_option_added_late_is_refused_as_any(kind: str) -> None:
    """What cannot be honoured is refused where its servicer is added (DESIGN §1)."""
    described = service(kind=options_pb2.ExactlyOnce.ATOMIC)
    async with rifl.Deduplicator("memory:") as dedup:
        server: Any
        if kind == "sync":
            server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])
        else:
            server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        dedup.add_to_server(server)
        with pytest.raises(PolicyError, match="no transactions"):
            _adder(described, [])(server)


def test_an_option_that_nobody_took_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """On an aio server whose servicers came first it cannot be seen in time (DESIGN §9)."""
    described = service(required=True)
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve("aio", (), dedup=_Order(dedup, _adder(described, []), "before")) as served,
        RawClient(served.address) as client,
    ):
        for seq in (1, 2):
            assert client.call(f"/{described.full_name}/M", b"", seq).ok
    told = [record for record in caplog.records if "options_not_taken" in record.getMessage()]
    assert len(told) == 1


def test_mypy_takes_what_the_docs_write(tmp_path: Path) -> None:
    """``mypy --strict`` finds a policy's word that is none, and knows a refused call (§3, §9).

    A refused call is both classes: were they not to be combined, what is done with it would
    count as never reached, and nobody would check it.
    """
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        """
import grpc, rifl, rifl.core
policy = rifl.MethodPolicy(kind="atomic", unrecorded={"UNAVAILABLE", 8, grpc.StatusCode.ABORTED})
kind: rifl.Kind = policy.kind
numbers: frozenset[int] = policy.unrecorded
rifl.Deduplicator("memory:", methods={"/a.B/C": policy, "/a.B/D": "atomic", "*": None})
rifl.MethodPolicy(kind="atomci")
try:
    pass
except rifl.core.LeaseExpired as error:
    if isinstance(error, rifl.CallError):
        code: grpc.StatusCode = error.code()
        print(error.rpc_id, error.reason, error.original_cod)
"""
    )
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *("--config-file=", f"--cache-dir={tmp_path}", str(snippet)),
        ],
        cwd=Path(rifl.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if line.startswith(f"{snippet}:")]
    assert len(errors) == 2, checked.stdout
    assert "atomci" in errors[0]
    assert "original_cod" in errors[1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///:memory:", "memory:"),
        ("sqlite:///file.db?mode=ro", "no parameter but"),
        ("sqlite:///file.db?foreign_keys=yes", "no parameter but"),
        ("memory:?x=1", "memory"),
        ("redis://127.0.0.1:1/?namspace=x", "namspace"),
        ("redis+cluster://127.0.0.1:1/?namspace=x", "namspace"),
        ("redis+sentinel://127.0.0.1:1/primary?namspace=x", "namspace"),
        ("postgresql://127.0.0.1:1/db?shcema=x", "not a PostgreSQL URL"),
    ],
)
def test_a_url_that_is_not_understood_is_refused(url: str, words: str) -> None:
    """A parameter that nobody knows is a mistake, not a file's name (DESIGN §6)."""
    with pytest.raises(UnsupportedStore, match=words):
        rifl.Deduplicator(url)
