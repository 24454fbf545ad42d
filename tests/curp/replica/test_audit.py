"""A group tells who was not let in, and who changed it (DESIGN §7, §9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from chaos.sim.group.log import LogStore
from curp._core.witness_table import WitnessTable
from curp._group_token import GROUP_TOKEN_KEY
from curp._replica.group_service import add_group_service
from curp.metrics import PrometheusGroupObserver, WitnessCollector
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from curp.witness._handlers import WitnessHandlers
from curp.witness._service import add_witness_service
from rifl._grpc.audit import CallerAudit
from tests.curp.replica.running import replica
from tests.curp.witness.test_handlers import record_bytes, start_bytes

TOKEN = "open sesame"  # noqa: S105 - of these tests
SHOWN, GUESSED = (((GROUP_TOKEN_KEY, each),) for each in (TOKEN, "a guess"))
ADDRESS = "127.0.0.1"


def callers(told: Any) -> list[tuple[str, str, str, int]]:
    """Return what was told of callers that are not let in."""
    return [
        (each["kind"], each["reason"], each["address"], each["times"])
        for each in told
        if each["event"] == "caller_refused"
    ]


def acts(told: Any) -> list[tuple[str, str, str, str]]:
    """Return what was told of changes."""
    return [
        (each["caller"], each["verb"], each["object"], each["outcome"])
        for each in told
        if each["event"] == "operator_acted"
    ]


@contextmanager
def refused() -> Iterator[None]:
    """Expect NOT_YOURS."""
    with pytest.raises(grpc.RpcError) as error:
        yield
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]


def test_changes_of_a_group_are_told_and_who_may_not_make_them() -> None:
    """By whom, which, and how it ended; the metric is among those of calls (DESIGN §9)."""
    registry = CollectorRegistry()
    observer = PrometheusGroupObserver(registry)
    with (
        replica(LogStore().engine(), group_token=TOKEN, observer=observer) as running,
        grpc.insecure_channel(running.address) as channel,
        structlog.testing.capture_logs() as told,
    ):
        running.until_leading()
        group = curp_pb2_grpc.GroupStub(channel)
        number = running.replica.configuration().configuration
        change = pb.ChangeWitnessesRequest(configuration=number)
        ending = pb.EndSessionRequest(name="nightly")
        with refused():
            group.Status(pb.GroupStatusRequest(), timeout=30)
        for _ in range(10):
            with refused():
                group.EndSession(ending, timeout=30, metadata=GUESSED)
        group.EndSession(ending, timeout=30, metadata=SHOWN)
        group.RotateSecret(pb.RotateSecretRequest(), timeout=30, metadata=SHOWN)
        running.replica.rotate_secret()
        group.ChangeWitnesses(change, timeout=30, metadata=SHOWN)
        with pytest.raises(grpc.RpcError):
            group.FinalizeUpgrade(
                pb.FinalizeUpgradeRequest(version=7, who="ann"), timeout=30, metadata=SHOWN
            )
        running.replica.end_session("by hand")
        group.Transfer(pb.TransferRequest(replica="r1"), timeout=30, metadata=SHOWN)
    token = "group_token"  # noqa: S105 - a label
    assert callers(told) == [
        (token, "missing", ADDRESS, 1),
        (token, "wrong", ADDRESS, 1),
        (token, "wrong", ADDRESS, 10),
    ]
    found = acts(told)
    by_hand = found.pop(4), found[6]
    assert by_hand[0][1:] == ("rotate_secret", "group", "done")
    assert ["@" in each[0] for each in by_hand] == [True, True]
    assert [each[1:] for each in found] == [
        ("end_session", "nightly", "refused"),
        ("end_session", "nightly", "refused"),
        ("end_session", "nightly", "done"),
        ("rotate_secret", "group", "done"),
        ("change_witnesses", "none", "done"),
        ("finalize_upgrade", "7", "unknown"),
        ("end_session", "by hand", "done"),
        ("transfer", "r1", "done"),
    ]
    assert {each[0] for each in (*found[:6], found[7])} == {ADDRESS}
    wrong = {"kind": token, "reason": "wrong"}
    assert registry.get_sample_value("rifl_server_callers_refused_total", wrong) == 10
    assert ADDRESS.encode() not in generate_latest(registry)


class _Group:
    """It ends sessions, and does nothing else."""

    def end_session(self, name: str) -> list[int]:
        return [7]


async def test_a_group_on_an_event_loop_tells_the_same() -> None:
    """Where its answers come from threads (DESIGN §9)."""
    audit = CallerAudit()
    server = grpc.aio.server()
    group: Any = _Group()
    add_group_service(server, group, group_token=TOKEN, audit=audit)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with structlog.testing.capture_logs() as told:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = curp_pb2_grpc.GroupStub(channel)
            request = pb.EndSessionRequest(name="nightly")
            with refused():
                await stub.EndSession(request, timeout=30)
            await stub.EndSession(request, timeout=30, metadata=SHOWN)
    await server.stop(None)
    assert callers(told) == [("group_token", "missing", ADDRESS, 1)]
    assert [each[1:] for each in acts(told)] == [
        ("end_session", "nightly", "refused"),
        ("end_session", "nightly", "done"),
    ]
    assert audit.counts == {("group_token", "missing"): 1}


async def test_a_witness_tells_of_strangers() -> None:
    """Of no group token, and of wrong tokens of callers, alone and among others (DESIGN §9)."""
    table, registry = WitnessTable(), CollectorRegistry()
    witness = WitnessHandlers(table)
    witness.start(start_bytes())
    WitnessCollector(table, registry, refused=witness.audit.counts)
    server = grpc.aio.server()
    add_witness_service(server, witness, group_token=TOKEN)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    bad = bytes(20)
    with structlog.testing.capture_logs() as told:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = curp_pb2_grpc.WitnessStub(channel)
            with refused():
                await stub.Collect(pb.CollectRequest(), timeout=30)
            with refused():
                async for _ in stub.Freeze(pb.FreezeRequest(), timeout=30, metadata=GUESSED):
                    pass
            record: Any = channel.unary_unary("/curp.v1.Witness/Record")
            with refused():
                await record(record_bytes(1, b"", 7, token=bad), timeout=30)
            records: Any = channel.stream_stream("/curp.v1.Witness/Records")(timeout=30)
            some = [record_bytes(1, b"", 7), *(record_bytes(2, b"", 8, token=bad),) * 2]
            await records.write(pb.RecordsRequest(first=1, records=some).SerializeToString())
            reply = pb.RecordsReply.FromString(await records.read())
            assert list(reply.verdicts)[1:] == [0, 0]
            await records.done_writing()
    await server.stop(None)
    assert callers(told) == [
        ("group_token", "missing", ADDRESS, 1),
        ("group_token", "wrong", ADDRESS, 1),
        ("client_token", "wrong", ADDRESS, 1),
    ]
    name, labels = "curp_witness_callers_refused_total", {"kind": "client_token", "reason": "wrong"}
    assert registry.get_sample_value(name, labels) == 3
