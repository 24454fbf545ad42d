"""Every method of gRPC's that our classes stand in for is ours, not inherited."""

from __future__ import annotations

import inspect
from typing import Any

import grpc
import grpc._channel
import grpc.aio
import grpc.aio._call
import grpc.aio._channel
import pytest

import rifl
import rifl.aio
from rifl._client.aio_call import UnaryUnaryCall
from rifl._client.aio_channel import AioChannel
from rifl._client.aio_multicallable import AioUnaryUnaryMultiCallable
from rifl._client.aio_targets import AioTargetsChannel
from rifl._client.errors import CallError
from rifl._client.sync_channel import Channel
from rifl._client.sync_exchange import CallFuture
from rifl._client.sync_multicallable import UnaryUnaryMultiCallable
from rifl._client.sync_targets import TargetsChannel

# What gRPC's concrete classes offer beyond their interfaces, and users reach for.
_CONCRETE: dict[type, Any] = {
    CallFuture: grpc._channel._MultiThreadedRendezvous,  # type: ignore[attr-defined]
    CallError: grpc._channel._InactiveRpcError,  # type: ignore[attr-defined]
    UnaryUnaryCall: grpc.aio.UnaryUnaryCall,
}
_STREAMING_ONLY = {"next"}


def _public(cls: Any) -> set[str]:
    return {
        name
        for name in dir(cls)
        if (not name.startswith("_") or name in ("__call__", "__await__"))
        and callable(getattr(cls, name))
    }


@pytest.mark.parametrize(
    ("ours", "interfaces"),
    [
        (Channel, [grpc.Channel]),
        (TargetsChannel, [grpc.Channel]),
        (AioTargetsChannel, [grpc.aio.Channel]),
        (UnaryUnaryMultiCallable, [grpc.UnaryUnaryMultiCallable]),
        (CallFuture, [grpc.Call, grpc.Future]),
        (CallError, [grpc.Call, grpc.Future, grpc.aio.AioRpcError]),
        (AioChannel, [grpc.aio.Channel]),
        (AioUnaryUnaryMultiCallable, [grpc.aio.UnaryUnaryMultiCallable]),
        (UnaryUnaryCall, [grpc.aio.UnaryUnaryCall, grpc.aio._call.UnaryUnaryCall]),  # type: ignore[attr-defined]
    ],
)
def test_every_public_method_is_forwarded(ours: type, interfaces: list[Any]) -> None:
    """A method gRPC adds to an interface fails this test until we forward it."""
    missing = []
    wanted = {name for interface in interfaces for name in _public(interface)}
    if ours in _CONCRETE:
        wanted |= _public(_CONCRETE[ours]) - _STREAMING_ONLY
    # Only multicallables are called.
    if "MultiCallable" not in ours.__name__:
        wanted.discard("__call__")
    for name in wanted:
        implementation = inspect.getattr_static(ours, name, None)
        owner = next((cls for cls in ours.__mro__ if name in vars(cls)), None)
        abstract = getattr(implementation, "__isabstractmethod__", False)
        forwarded = owner is not None and (
            owner.__module__.startswith("rifl.") or owner is grpc.aio.AioRpcError
        )
        if abstract or not forwarded:
            missing.append(name)
    if ours is CallError or ours is CallFuture:
        missing = [name for name in missing if name != "with_traceback" and name != "add_note"]
    assert missing == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Channel.unary_unary, grpc._channel.Channel.unary_unary),  # type: ignore[attr-defined]
        (Channel.subscribe, grpc.Channel.subscribe),
        (UnaryUnaryMultiCallable.__call__, grpc.UnaryUnaryMultiCallable.__call__),
        (UnaryUnaryMultiCallable.with_call, grpc.UnaryUnaryMultiCallable.with_call),
        (UnaryUnaryMultiCallable.future, grpc.UnaryUnaryMultiCallable.future),
        (AioChannel.unary_unary, grpc.aio._channel.Channel.unary_unary),  # type: ignore[attr-defined]
        (AioChannel.close, grpc.aio.Channel.close),
        (AioChannel.get_state, grpc.aio.Channel.get_state),
        (AioUnaryUnaryMultiCallable.__call__, grpc.aio.UnaryUnaryMultiCallable.__call__),
    ],
)
def test_signatures_take_what_grpcs_take(ours: Any, theirs: Any) -> None:
    """Names, order and defaults of the parameters are gRPC's."""

    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        return [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in inspect.signature(function).parameters.values()
        ]

    assert shape(ours) == shape(theirs)


@pytest.mark.parametrize("ours", [rifl.connect, rifl.aio.connect])
def test_connects_keywords_are_shown_and_no_others_taken(ours: Any) -> None:
    """Sync and aio take the same ones, with the same defaults, which ``help`` shows (DESIGN §9)."""
    shown = inspect.signature(ours).parameters
    assert shown == inspect.signature(rifl.connect).parameters
    assert (shown["window"].default, shown["retry"].default) == (512, None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'retires'"):
        ours("localhost:1", retires=1)
