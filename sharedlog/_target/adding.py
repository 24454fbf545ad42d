"""The doors of a target: what makes a server one, and what its handlers are told (§15)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from _rifl_ground.numbers import check_count
from rifl._server.local_calls import LocalCalls, PolicyError, UnsupportedStore, subject_of
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.sealing import Seals, Transform
from sharedlog._core.target_methods import Delivered, Methods
from sharedlog._core.target_steps import (
    HandlerKind,
)
from sharedlog._target.access import PlayerAccess
from sharedlog._target.aio_target import AioTarget
from sharedlog._target.requests import SERVICE
from sharedlog._target.sync_target import SyncTarget
from sharedlog._target.target import ServedTarget, TargetLimits

_log = get_logger("sharedlog.target")
_LIMITS = TargetLimits()


def add_target_to_server(
    server: grpc.Server | grpc.aio.Server,
    dedup: Any,
    streams: Mapping[str, str | Sequence[str]],
    *,
    token: str | bytes | Sequence[str | bytes] | None = None,
    peers: Collection[str] | None = None,
    unseal: Transform | None = None,
    concurrency: int = _LIMITS.concurrency,
    queued_bytes: int = _LIMITS.queued_bytes,
    most_bytes: int = _LIMITS.most_bytes,
) -> None:
    """Make a server a target: players call its methods with streams' messages, in order, once.

    ::

        sharedlog.add_target_to_server(
            server, dedup, {"orders": ["/shop.v1.Inventory/Reserve"]}, token=TOKEN
        )

    ``dedup``: the server's ``rifl.Deduplicator``, whose interceptor the server has; its store keeps
    how far each substream is done. ``streams``: the methods that the messages of each stream can
    call, and no others. A message that names no method calls the only one. Methods are unary, and
    declared as for callers: ``atomic``, ``idempotent`` or ``plain`` (see
    docs/reference/targets.md for what a crash leaves of each).

    ``token``, ``peers``: players send this token (one of several, so that a new one comes into
    use), or have a certificate with one of these names, such as ``dns:player.shop.internal``
    (kinds: dns, uri, email, ip, cn). By default every client that reaches the server can deliver.
    ``unseal`` opens messages that were published sealed. ``concurrency``: how many handlers run at
    once on an event loop. ``queued_bytes``: how much of one player may wait there. ``most_bytes``:
    the largest message that the server receives (gRPC's
    ``grpc.max_receive_message_length``).

    Call it before the server starts. Raises ``InvalidRequest``. Raises rifl's ``PolicyError`` for a
    method that cannot be called so, or a server without the interceptor, and ``UnsupportedStore``
    for a store without such rows, such as a group's.
    """
    calls = _calls_of(dedup)
    check_count("concurrency", concurrency, 1, error=InvalidRequest)
    check_count("queued_bytes", queued_bytes, 1, error=InvalidRequest)
    check_count("most_bytes", most_bytes, 1, error=InvalidRequest)
    seals = None if unseal is None else Seals(_cannot_seal, unseal)
    methods = Methods(streams, _kinds(calls), seals)
    for method in {each for some in methods.streams.values() for each in some}:
        _check(calls, method)
    access = PlayerAccess(token, peers)
    target = ServedTarget(
        calls, methods, access, TargetLimits(concurrency, queued_bytes, most_bytes)
    )
    makers: dict[str, Callable[[Any], Any]]
    if isinstance(server, grpc.aio.Server):
        makers = AioTarget(target).methods()
    else:
        makers = SyncTarget(target, server).methods()
    calls.host(server, makers)
    if access.is_open:
        _log.warning("target_open", streams=sorted(methods.streams), hint="give a token or peers")


def delivery(context: Any) -> Delivered | None:
    """Return what is known of the message that a handler is called with.

    None if a gRPC client calls the handler. Any thread that has the handler's context.
    """
    found = subject_of(context)
    return found if isinstance(found, Delivered) else None


def _calls_of(dedup: Any) -> LocalCalls:
    calls = getattr(dedup, "_local_calls", None)
    if not isinstance(calls, LocalCalls):
        raise UnsupportedStore(
            f"a target needs a rifl.Deduplicator, not a {type(dedup).__name__}: a group cannot be "
            "one. Give the handlers that players call a server with a Deduplicator over SQLite, "
            "Redis or PostgreSQL, and have them call the group"
        )
    _ = calls.rows
    return calls


def _kinds(calls: LocalCalls) -> Callable[[str], HandlerKind | None]:
    def kind_of(method: str) -> HandlerKind | None:
        policy = calls.policy(method)
        return None if policy is None else HandlerKind(policy.kind.value)

    return kind_of


def _check(calls: LocalCalls, method: str) -> None:
    if method.startswith(f"/{SERVICE}/"):
        raise PolicyError(f"{method} is the target's own")
    policy = calls.policy(method)
    if policy is None:
        raise PolicyError(f"{method} is declared not to be deduplicated: players cannot call it")
    if policy.database is not None:
        raise PolicyError(
            f"{method} records in {policy.database}, and a target's index is in the store: make "
            "that the store, or leave the method's database out"
        )


def _cannot_seal(data: bytes, associated: bytes) -> bytes:
    raise AssertionError("a target seals nothing")
