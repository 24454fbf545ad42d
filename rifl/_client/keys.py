"""``rifl.key``: a call's name of its caller's own, and where a call finds it (DESIGN §3)."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import Any, Self

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.errors import CallError, call_error
from rifl._wire.envelope import BATCH_KEY
from rifl._wire.header import HEADER_KEY, KEY_KEY
from rifl._wire.metadata import is_sendable
from rifl.core._calling.invocation import OWN_HEADER
from rifl.core._shared.errors import BadHeader
from rifl.core._shared.identity import check_key

# Consumed by the channel: it never leaves the process.
KEY_ENTRY = "rifl-key-bin"
# The channel alone says these. A handler that passes its caller's metadata on has those of the
# call that it serves, and the server would take the first.
_OWN = frozenset({KEY_ENTRY, HEADER_KEY, BATCH_KEY})
CURRENT_KEY: contextvars.ContextVar[bytes | None] = contextvars.ContextVar("rifl_key", default=None)


class key(tuple[str, bytes]):  # noqa: N801 - used like a function
    """A key for the calls made with it, in one of two ways::

        with rifl.key("order-7"):
            stub.Pay(request)

        stub.Pay(request, metadata=[rifl.key("order-7")])

    All calls of a named session with the same key, in all processes that opened it, are
    one call: it happens once, and each gets its answer. Another method or request under
    the same key raises ``PayloadMismatch``, so that a key in a ``with`` block is for one
    call and its repetitions. On a channel without a session, and for a call with two
    keys, the call raises ``BadHeader`` and nothing is sent. 1 to 255 bytes, text as UTF-8;
    raises ``BadHeader``, a ``CallError``, for another length, and ``TypeError`` for other
    types, such as a number. Each thread and task has its own context.
    """

    def __new__(cls, value: str | bytes) -> Self:
        """Check the key."""
        # bytes(7) would be seven zeroes, unnoticed.
        if not isinstance(value, str | bytes | bytearray | memoryview):
            raise TypeError(f"a key is text or bytes, not {type(value).__name__}: say str(...)")
        try:
            data = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError as error:
            raise key_error(f"a key is text that UTF-8 can encode: {error}") from None
        return super().__new__(cls, (KEY_ENTRY, _checked(data)))

    def __enter__(self) -> Self:
        self.__dict__.setdefault("tokens", []).append(CURRENT_KEY.set(self[1]))
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT_KEY.reset(self.__dict__["tokens"].pop())


def take_key(metadata: Iterable[Any] | None) -> tuple[bytes | None, Any]:
    """Return the call's key, None if it has none, and its metadata without rifl's entries.

    ``OWN_HEADER`` for a call that its caller names by the plain header. Raises
    ``rifl.core.BadHeader`` for two keys: it is unknown which one counts.
    """
    found = CURRENT_KEY.get()
    if not metadata:
        return found, metadata
    if isinstance(metadata, key):
        raise key_error("metadata is a list of entries: write metadata=[rifl.key(...)]")
    entries = tuple(metadata)
    rest = tuple(entry for entry in entries if entry[0] not in _OWN)
    given = [entry[1] for entry in entries if entry[0] == KEY_ENTRY]
    headers = [OWN_HEADER for entry in entries if entry[0] == KEY_KEY]
    if found is not None and found not in given:
        given.append(found)
    if len(given) + len(headers) > 1:
        raise key_error("a call has one key: rifl.key once, or the idempotency-key header")
    for each in given:
        _checked(each)
    return next(iter(given + headers), None), rest


def _checked(data: bytes) -> bytes:
    try:
        check_key(data)
    except BadHeader as error:
        raise key_error(str(error)) from None
    return data


def invalid_metadata(metadata: Iterable[Any] | None) -> CallError | None:
    """Return what gRPC says of metadata that it cannot send, None where it can.

    Found here, before anything waits for a client id, and not taken for what a
    connection answers, which would be tried again.
    """
    for entry in metadata or ():
        # Other types than these are TypeErrors of gRPC's.
        name, value = (
            each.decode("latin-1") if isinstance(each, bytes) else each for each in entry[:2]
        )
        if isinstance(name, str) and not is_sendable(name, value):
            return call_error(
                grpc.StatusCode.INTERNAL,
                f"metadata was invalid: {metadata}",
                rpc_id=None,
                outcome=Outcome.NOT_EXECUTED,
            )
    return None


def key_error(message: str) -> CallError:
    """Build the error of a key that means nothing here; nothing was sent."""
    return call_error(
        grpc.StatusCode[BadHeader.code_name],
        message,
        rpc_id=None,
        outcome=BadHeader.outcome,
        reason=BadHeader.reason,
    )


def refuse_key(metadata: Iterable[Any] | None) -> None:
    """Raise ``rifl.core.BadHeader`` if a call that is not deduplicated has a rifl key."""
    if take_key(metadata)[0]:
        raise key_error("a bidirectional call is not deduplicated: a key means nothing to it")


def as_key(value: str | bytes | None) -> bytes | None:
    """Return a key as bytes; raises as ``key`` does."""
    return None if value is None else key(value)[1]
