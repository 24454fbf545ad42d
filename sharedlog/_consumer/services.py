"""The services that handlers call: their channels, by session, and what they answer (T6)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from _rifl_ground.refusals import Outcome
from _rifl_ground.texts import hides
from rifl._client.answers import FinalStatus
from rifl._client.errors import CallError, call_error
from rifl._client.keys import key
from rifl._client.sync_channel import Channel, connect
from rifl._grpc.codes import status_code
from rifl._wire.labels import without_labels
from rifl._wire.records import record_from_bytes, record_to_bytes
from rifl.core._calling.retry import RetryPolicy
from rifl.core._shared.codes import raised_code
from rifl.core._shared.reasons import RETRIED_REASONS
from rifl.core._shared.record import CompletionRecord, Metadata
from sharedlog._core.consumer.calls import Open, SendCall, Unanswered

# How long answers outlive a consumer that no process runs: as long as services keep any.
_RETENTION_S = 30 * 86_400.0
# How long a call is tried that has no timeout: then other substreams have their turn.
_RETRY = RetryPolicy(max_elapsed_s=2.0)
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_MISMATCH = "PAYLOAD_MISMATCH"
_CLOSED = "SESSION_CLOSED"


@hides("secret")
class CalledService(NamedTuple):
    """How a service is called; see ``Consumer.service``."""

    credentials: grpc.ChannelCredentials | None = None
    secret: str | bytes | Sequence[str | bytes] | None = None
    options: Sequence[tuple[str, Any]] = ()
    interceptors: Sequence[Any] = ()
    plaintext_secrets: bool = False


class ServiceAnswer(NamedTuple):
    """What a service has answered to a call: a message's bytes, or an error."""

    response: bytes
    error: CallError | None
    initial_metadata: Metadata
    trailing_metadata: Metadata


class ServiceChannels:
    """The channels of one process, one for each session. One thread; not that of its futures."""

    def __init__(self, declared: Mapping[str, CalledService]) -> None:
        """``declared``: by target; another one is called without credentials."""
        self._declared = declared
        # By target and series: the session, and its channel.
        self._channels: dict[tuple[str, str], tuple[str, Channel]] = {}

    def open(self, step: Open) -> str:
        """Open a session at a service; raises ``Unanswered``."""
        channel = self._channel(step.target, step.session)
        try:
            return str(channel.session.open(step.timeout_s))
        except CallError as error:
            raise _unanswered(error) from error

    def send(self, step: SendCall) -> grpc.Future:  # type: ignore[type-arg]
        """Send a call and return at once; ``answer`` reads its result."""
        call = step.call
        channel = self._channel(call.target, call.session)
        entries = [*step.metadata, key(call.key)]
        method = channel.unary_unary(call.method)
        return method.future(call.request, timeout=step.timeout_s, metadata=entries)

    @staticmethod
    def answer(future: Any) -> bytes:
        """Return the answer of a completed call, packed for the store; raises ``Unanswered``."""
        try:
            reply = future.result()
        except grpc.FutureCancelledError as error:
            raise Unanswered(_cancelled(), away=True) from error
        except CallError as error:
            if error.outcome not in (Outcome.EXECUTED, Outcome.REPLAYED):
                raise _unanswered(error) from error
            record = CompletionRecord(
                error.original_code.value[0],
                error.details() or "",
                None,
                _entries(error.initial_metadata()),
                without_labels(_entries(error.trailing_metadata())),
                Outcome.EXECUTED,
                error.reason,
            )
        else:
            trailing = without_labels(_entries(future.trailing_metadata()))
            record = CompletionRecord(0, "", reply, _entries(future.initial_metadata()), trailing)
        return record_to_bytes(record)

    def close(self) -> None:
        """Close the channels; idempotent."""
        while self._channels:
            _, (_, channel) = self._channels.popitem()
            channel.close()

    def _channel(self, target: str, session: str) -> Channel:
        series = session.rpartition("#")[0]
        known = self._channels.get((target, series))
        if known is not None and known[0] == session:
            return known[1]
        if known is not None:
            # No message needs it any more: it closes with all before it.
            with contextlib.suppress(CallError):
                known[1].session.close()
            known[1].close()
        service = self._declared.get(target, CalledService())
        channel = connect(
            target,
            service.credentials,
            options=service.options,
            interceptors=service.interceptors,
            session=session,
            session_retention=_RETENTION_S,
            secret=service.secret,
            plaintext_secrets=service.plaintext_secrets,
            retry=_RETRY,
        )
        self._channels[target, series] = session, channel
        return channel


def read(kept: bytes) -> ServiceAnswer:
    """Unpack an answer that the store kept."""
    record = record_from_bytes(kept)
    error = None
    if record.code:
        code = status_code(record.code)
        error = call_error(
            grpc.StatusCode[raised_code(code.name, Outcome.REPLAYED, record.reason, attempts=1)],
            record.details,
            rpc_id=None,
            outcome=Outcome.REPLAYED,
            reason=record.reason,
            status=FinalStatus(
                code, record.details, record.initial_metadata, record.trailing_metadata
            ),
            original_code=code,
        )
    return ServiceAnswer(
        record.response or b"", error, record.initial_metadata, record.trailing_metadata
    )


def _unanswered(error: CallError) -> Unanswered:
    """What a call ended with that no service has answered: it is away, or refuses."""
    away = error.reason in RETRIED_REASONS or (not error.reason and error.original_code in _AWAY)
    return Unanswered(error, away=away, lasts=error.reason in (_MISMATCH, _CLOSED))


def _cancelled() -> CallError:
    return call_error(grpc.StatusCode.CANCELLED, "cancelled", rpc_id=None, outcome=Outcome.UNKNOWN)


def _entries(metadata: Any) -> Metadata:
    return tuple((str(name), value) for name, value in metadata or ())
