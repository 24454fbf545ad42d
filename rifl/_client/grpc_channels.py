"""gRPC's own channels, opened also where its functions were replaced by ones that open ours."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from rifl._client.settings import method_name
from rifl.core._calling.targets import Targets, split_targets

_Channel = TypeVar("_Channel")
_Opened = TypeVar("_Opened", covariant=True)
# gRPC's own functions have states as numbers.
_STATES = {state.value[0]: state for state in grpc.ChannelConnectivity}
_OWN_OPTION = "grpc.use_local_subchannel_pool"


class Connect(Protocol[_Opened]):
    """Opens channels to any address, alike but for it."""

    def __call__(self, address: str, *, own: bool = False) -> _Opened:
        """``own``: with a connection that no other channel has."""


# Whether a rifl channel is being opened in this context.
_OPENING: contextvars.ContextVar[bool] = contextvars.ContextVar("rifl_opening", default=False)


def opening() -> bool:
    """Whether this is asked for by a function that stands in for gRPC's, inside ``connect``.

    A library's channels become ours where ``grpc.insecure_channel`` is replaced by a
    function that calls ``connect``. That calls it in its turn, and would without end.
    """
    return _OPENING.get()


def open_sync(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    compression: grpc.Compression | None = None,
) -> grpc.Channel:
    """Open a channel by ``grpc.insecure_channel`` or ``grpc.secure_channel``."""
    if credentials is None:
        channel = _open("insecure_channel", grpc.insecure_channel, target, options, compression)
    else:
        channel = _open(
            "secure_channel", grpc.secure_channel, target, credentials, options, compression
        )
    opened: grpc.Channel = channel
    return opened


def open_aio(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    compression: grpc.Compression | None,
    interceptors: Sequence[grpc.aio.ClientInterceptor],
) -> grpc.aio.Channel:
    """Open a channel by ``grpc.aio.insecure_channel`` or ``grpc.aio.secure_channel``."""
    rest = (options, compression, interceptors)
    if credentials is None:
        channel = _open("aio.insecure_channel", grpc.aio.insecure_channel, target, *rest)
    else:
        channel = _open("aio.secure_channel", grpc.aio.secure_channel, target, credentials, *rest)
    opened: grpc.aio.Channel = channel
    return opened


# Where gRPC has what its packages show.
_sync: Any = import_module("grpc._channel")
_aio: Any = import_module("grpc.aio._channel")


def _is_grpcs(function: Any) -> bool:
    # A wrapper may bear gRPC's names, but not be a plain function of its module.
    home = sys.modules.get(getattr(function, "__module__", ""))
    return (
        isinstance(function, FunctionType)
        and function.__module__.partition(".")[0] == "grpc"
        and function.__globals__ is vars(home)
    )


def _sync_original(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(grpc, name)
    if _is_grpcs(found):
        return found

    def made(target: str, *rest: Any) -> grpc.Channel:
        # Replaced before this was imported, so that nothing has gRPC's function any more.
        *credentials, options, compression = rest
        inner = credentials[0]._credentials if credentials else None
        channel: grpc.Channel = _sync.Channel(target, options or (), inner, compression)
        return channel

    return made


# As they were before anybody replaced them.
_ORIGINALS: dict[str, Callable[..., Any]] = {
    "insecure_channel": _sync_original("insecure_channel"),
    "secure_channel": _sync_original("secure_channel"),
    "aio.insecure_channel": _aio.insecure_channel,
    "aio.secure_channel": _aio.secure_channel,
}


def likeness(
    opened_by: Any,
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
    compression: grpc.Compression | None,
) -> Hashable:
    """Return what is equal for channels that ``connect`` opened alike; None for one apart.

    Credentials are alike where they are one object. ``opened_by`` is ``grpc`` or ``grpc.aio``.
    A channel to several targets is apart, since each of these has a current one of its own.
    So is one that gRPC's own function did not open: a wrapper around it may add an identity
    to each call.
    """
    targets = split_targets(target)
    function = opened_by.insecure_channel if credentials is None else opened_by.secure_channel
    if len(targets) != 1 or not _is_grpcs(function):
        return None
    alike = (opened_by.__name__, targets[0], credentials, tuple(options), compression)
    try:
        hash(alike)
    except TypeError:
        # An option of an unknown kind: nothing says when two of them are alike.
        return None
    return alike


def over_targets(
    target: str | Sequence[str],
    follow: bool,
    open_one: Connect[_Channel],
    over: Callable[[Targets, Connect[_Channel]], _Channel],
) -> _Channel:
    """Return the channel under a rifl channel, over gRPC's own.

    ``follow``: whether a server's word on who leads may add targets. Where a function that
    stands in for gRPC's asks for it (``opening``), gRPC's own to the first target.
    """
    targets = split_targets(target)
    if opening():
        return open_one(targets[0])
    return over(Targets(targets, follow=follow), open_one)


def connectivity(channel: Any) -> grpc.ChannelConnectivity | None:
    """Return the state of a sync channel of gRPC's; None if it is not known."""
    # Below interceptors, which keep the channel that they are around under this name.
    while channel is not None:
        state = getattr(channel, "check_connectivity_state", None)
        if state is not None:
            try:
                return _STATES[state(False)]
            except ValueError:
                # Closed.
                return None
        channel = getattr(channel, "_channel", None)
    return None


def waits_for_ready(
    credentials: grpc.CallCredentials | None = None,
    wait_for_ready: bool | None = None,
    compression: grpc.Compression | None = None,
) -> bool:
    """Whether a call with these arguments waits for a connection."""
    return bool(wait_for_ready)


def own_connection(options: Sequence[tuple[str, Any]], own: bool) -> Sequence[tuple[str, Any]]:
    """Return a channel's options: gRPC's channels share connections, unless it is its ``own``."""
    return (*options, (_OWN_OPTION, 1)) if own else options


def inner_method(
    make: Callable[..., Any],
    method: str | bytes,
    response_deserializer: Callable[[bytes], Any] | None,
    registered_method: bool | None,
) -> tuple[str, Any]:
    """Return a method's name, and gRPC's own multicallable for it.

    That takes requests as bytes, which are fingerprinted, and reads the responses.
    """
    name = method_name(method)
    return name, make(name, None, response_deserializer, registered_method)


def _open(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if _OPENING.get():
        return _ORIGINALS[name](*arguments)
    # Other wrappers of gRPC's functions, such as for tracing, must see this channel, too.
    token = _OPENING.set(True)
    try:
        return function(*arguments)
    finally:
        _OPENING.reset(token)
