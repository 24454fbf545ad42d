"""The guards of a session's secret: no connection without encryption takes it off this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.plaintext import why_not_sent
from _rifl_ground.refusals import Outcome
from rifl._client.errors import CallError, call_error
from rifl._client.routing import LEASE_SERVICE
from rifl._client.settings import Settings

# Those whose requests hold it.
_SHOWING = tuple(f"{LEASE_SERVICE}{name}" for name in ("OpenSession", "CloseSession"))


def refused(why: str) -> CallError:
    """Return the error of a call that is not sent, since a secret is in it."""
    return call_error(
        grpc.StatusCode.FAILED_PRECONDITION, why, rpc_id=None, outcome=Outcome.NOT_EXECUTED
    )


def guards(
    kind: Callable[[str], Any],
    settings: Settings,
    address: str,
    credentials: grpc.ChannelCredentials | None,
) -> tuple[Any, ...]:
    """Return the interceptors that a channel to an address needs: one of a kind, or none."""
    if not settings.session_secrets:
        return ()
    why = why_not_sent(
        "the session's secret",
        address,
        secure=credentials is not None,
        allowed=settings.plaintext_secrets,
    )
    return (kind(why),) if why else ()


class SecretGuard(grpc.UnaryUnaryClientInterceptor):
    """Ends calls that show the secret; of a sync channel."""

    def __init__(self, why: str) -> None:
        self._why = why

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """See gRPC."""
        if client_call_details.method in _SHOWING:
            # A call that has ended.
            return refused(self._why)
        return continuation(client_call_details, request)


class AioSecretGuard(grpc.aio.UnaryUnaryClientInterceptor):
    """The same of an aio channel."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """See gRPC."""
        method = client_call_details.method
        if (method.decode() if isinstance(method, bytes) else method) in _SHOWING:
            raise refused(self._why)
        return await continuation(client_call_details, request)
