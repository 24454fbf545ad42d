"""Settings of a client: the keywords of ``connect``, and what its channel's options mean."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, TypeVar

import grpc

from _rifl_ground.numbers import check_counts
from lease_server import BadHeader, SessionPolicy
from lease_server._session_table import SessionTable
from rifl._client.session_secret import find_session_secrets
from rifl._wire.header import MAX_RESPONSE_BYTES
from rifl.core._calling.client_session import UNRESOLVED_LIMIT, UNRESOLVED_S
from rifl.core._calling.retry import RetryPolicy
from rifl.core._shared.identity import DEFAULT_WINDOW
from rifl.core._shared.observer import Observer

_Function = TypeVar("_Function", bound=Callable[..., Any])

DEFAULT_GROUP_PATH = "adaptive"
GROUP_PATHS = (DEFAULT_GROUP_PATH, "fast", "synced")
_RETRIES_OPTION = "grpc.enable_retries"
_RECEIVE_LIMIT_OPTION = "grpc.max_receive_message_length"
_UNLIMITED_BYTES = 2**32 - 1
# gRPC waits up to two minutes before it tries a lost server again: longer than
# any of our retries, the last ones before a deadline above all.
_RECONNECT_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
)
# What is sent and not acknowledged by TCP for so long breaks the connection (TCP's user timeout,
# which gRPC sets where pings are on): a NAT that forgot it answers nothing. The attempt is made
# again on another one. Pings come less often than servers bear by default, each five minutes.
_BROKEN_OPTIONS = (
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)

# Less is 0 on the wire, which asks for the server's default; more is cut by servers.
_SHORTEST_S, _LONGEST_S = 0.001, SessionPolicy().max_retention_s


class _Keywords(TypedDict, total=False):
    retry: RetryPolicy | None
    window: int
    unresolved_for: float
    unresolved_limit: int
    on_lease_lost: Callable[[int], None] | None
    observer: Observer | Sequence[Observer] | None
    keep_deadline_exceeded: bool


class InterceptorKeywords(_Keywords, total=False):
    """The keywords of ``rifl.client_interceptor``, which says what they mean."""

    grpc_retries: bool
    max_response_bytes: int


class AioInterceptorKeywords(InterceptorKeywords, total=False):
    """Those of ``rifl.aio.client_interceptor``."""

    hedge_after: float | None


class ConnectKeywords(_Keywords, total=False):
    """The keywords of ``rifl.connect`` and ``rifl.aio.connect``; the former says what they mean."""

    options: Sequence[tuple[str, Any]]
    compression: grpc.Compression | None
    interceptors: Sequence[Any]
    metadata: Callable[[str], Any] | None
    hedge_after: float | None
    session: str | None
    session_retention: float | None
    secret: str | bytes | Sequence[str | bytes] | None
    plaintext_secrets: bool
    follow_leaders: bool
    conflict_keys: Mapping[str, Callable[[Any], Any]] | None
    group_path: str


# The settings that keywords are, as they are given.
_FIELDS = {
    "retry": "retry",
    "hedge_after": "hedge_after_s",
    "window": "window",
    "unresolved_for": "unresolved_s",
    "unresolved_limit": "unresolved_limit",
    "on_lease_lost": "on_lease_lost",
    "observer": "observer",
    "session": "session_name",
    "session_retention": "session_retention_s",
    "plaintext_secrets": "plaintext_secrets",
    "keep_deadline_exceeded": "keep_deadline_exceeded",
    "group_path": "group_path",
    "metadata": "metadata",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A client's configuration; see ``rifl.connect``."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # Whether the application gave none, so that a path may bring its own.
    default_retry: bool = False
    hedge_after_s: float | None = None
    window: int = DEFAULT_WINDOW
    unresolved_s: float = UNRESOLVED_S
    unresolved_limit: int = UNRESOLVED_LIMIT
    on_lease_lost: Callable[[int], None] | None = None
    # Whether gRPC's own retries may have sent a call before we see its answer.
    grpc_retries: bool = False
    max_response_bytes: int = 0
    observer: Observer | Sequence[Observer] | None = None
    session_name: str | None = None
    session_retention_s: float | None = None
    # They open it where the channel has no authenticated peer, the first alone from then on.
    session_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    # Whose calls alone the session takes from now on (DESIGN §5); empty: all that open it.
    session_writer: bytes = b""
    # Whether they may go over a connection that is not encrypted.
    plaintext_secrets: bool = False
    # Whether a call that may have run can be raised as DEADLINE_EXCEEDED.
    keep_deadline_exceeded: bool = False
    # Callables by full method name, for a path that can use them.
    conflict_keys: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # How calls travel to a group: one of GROUP_PATHS.
    group_path: str = DEFAULT_GROUP_PATH
    # What is asked for the metadata of the client's own requests, by the method's name.
    metadata: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        check_counts(self, 0, "max_response_bytes")
        if self.hedge_after_s is not None and self.hedge_after_s <= 0:
            raise ValueError("hedge_after must be positive, or None")
        if self.session_name is not None:
            _check_session_name(self.session_name)
        if self.session_retention_s is not None and (
            self.session_name is None or not _SHORTEST_S <= self.session_retention_s <= _LONGEST_S
        ):
            raise ValueError(
                "session_retention belongs to a session, and is a millisecond to 30 days long: "
                "servers keep none longer"
            )
        if self.metadata is not None and not callable(self.metadata):
            raise ValueError("metadata is a function of the method's name: of each call, see stubs")
        if self.group_path not in GROUP_PATHS:
            raise ValueError(f"group_path is one of {', '.join(GROUP_PATHS)}")
        for method, found in self.conflict_keys.items():
            if not callable(found):
                raise ValueError(f"conflict_keys: {method} has no callable; fields need none")


_DEFAULTS: dict[str, Any] = {
    **{
        keyword: next(each.default for each in fields(Settings) if each.name == named)
        for keyword, named in _FIELDS.items()
    },
    "retry": None,
    "options": (),
    "compression": None,
    "interceptors": (),
    "secret": None,
    "follow_leaders": False,
    "conflict_keys": None,
    # What an interceptor cannot see: gRPC's own retries may be on.
    "grpc_retries": True,
    "max_response_bytes": 0,
}


def make_settings(
    given: Mapping[str, Any], *, grpc_retries: bool, max_response_bytes: int
) -> Settings:
    """Build settings of the keywords of a call of ``connect``, or of an interceptor's."""
    name, secret = given.get("session"), given.get("secret")
    if secret is not None and name is None:
        raise ValueError("a secret belongs to a session: rifl.connect(..., session=...)")
    found = {named: given[keyword] for keyword, named in _FIELDS.items() if keyword in given}
    retry = found.pop("retry", None)
    return Settings(
        **found,
        retry=retry or RetryPolicy(),
        default_retry=retry is None,
        grpc_retries=grpc_retries,
        max_response_bytes=max_response_bytes,
        session_secrets=find_session_secrets(secret) if name is not None else (),
        conflict_keys=dict(given.get("conflict_keys") or {}),
    )


def interceptor_settings(given: InterceptorKeywords) -> Settings:
    """Build an interceptor's settings."""
    return make_settings(
        given,
        grpc_retries=given.get("grpc_retries", _DEFAULTS["grpc_retries"]),
        max_response_bytes=given.get("max_response_bytes", _DEFAULTS["max_response_bytes"]),
    )


def shows(keywords: type) -> Callable[[_Function], _Function]:
    """Have a function take the keywords of a ``TypedDict``, and no others.

    ``help`` and ``inspect.signature`` show them with their defaults, as if they stood there.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_DEFAULTS[name],
                annotation=annotation.__forward_arg__,
            )
            for name, annotation in keywords.__annotations__.items()
        ]
        shown = signature.replace(parameters=[*own, *named])

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            shown.bind(*args, **given)
            return function(*args, **given)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def _check_session_name(name: str) -> None:
    try:
        SessionTable.check_name(name)
        # No message of the protocol could carry it.
        name.encode()
    except BadHeader as error:
        raise ValueError(str(error)) from None
    except UnicodeEncodeError as error:
        raise ValueError(f"a session name is text in UTF-8: {error}") from error


def method_name(method: str | bytes) -> str:
    """Return a method's full name as text; gRPC takes bytes, too."""
    return method.decode() if isinstance(method, bytes) else method


def channel_options(
    options: Any,
) -> tuple[tuple[tuple[str, Any], ...], bool, int]:
    """Return the inner channel's options, and what two of them mean to us.

    That is: whether gRPC's own retries are on, and ``max_response_bytes`` of the
    call header (0 for gRPC's default limit).
    """
    given = tuple(options or ())
    values = dict(given)
    limit = values.get(_RECEIVE_LIMIT_OPTION, MAX_RESPONSE_BYTES)
    if limit == MAX_RESPONSE_BYTES:
        limit = 0
    elif limit < 0 or limit > _UNLIMITED_BYTES:
        limit = _UNLIMITED_BYTES
    else:
        limit = max(limit, 1)
    ours: tuple[tuple[str, Any], ...] = (
        (_RETRIES_OPTION, 0),
        *_RECONNECT_OPTIONS,
        *_BROKEN_OPTIONS,
    )
    added = tuple((key, value) for key, value in ours if key not in values)
    return given + added, bool(values.get(_RETRIES_OPTION, 0)), limit
