"""``rifl.key``: naming calls by a key of the caller's own (DESIGN §3)."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rifl.core.keyed_tracker import check_key

__all__ = ["CURRENT_KEY", "KEY_ENTRY", "key", "take_key"]

# Consumed by the channel: it never leaves the process.
KEY_ENTRY = "rifl-key-bin"
CURRENT_KEY: contextvars.ContextVar[bytes | None] = contextvars.ContextVar("rifl_key", default=None)


class key(tuple[str, bytes]):  # noqa: N801 - used like a function
    """A key for the calls made with it, in one of two ways::

        with rifl.key("order-7"):
            stub.Pay(request)

        stub.Pay(request, metadata=[rifl.key("order-7")])

    All calls of a client id (or of a named session, across processes) with the
    same key are one call: it happens once, and each gets its answer. Another
    method or request under the same key raises ``PayloadMismatch``, so that a key
    in a ``with`` block is for one call and its repetitions. On a client id of its
    own the key is known while the lease lives, and at most for the server's
    retention; in a named session as long as that. 1 to 64 bytes, text as UTF-8;
    raises ``BadHeader`` else, and ``TypeError`` for what is neither, such as a number.
    Contexts of threads and tasks are their own.
    """

    def __new__(cls, value: str | bytes) -> Self:
        """Check the key."""
        # bytes(7) would be seven zeroes, and nobody would notice.
        if not isinstance(value, str | bytes | bytearray | memoryview):
            raise TypeError(f"a key is text or bytes, not {type(value).__name__}: say str(...)")
        data = value.encode() if isinstance(value, str) else bytes(value)
        check_key(data)
        return super().__new__(cls, (KEY_ENTRY, data))

    def __enter__(self) -> Self:
        self.__dict__.setdefault("tokens", []).append(CURRENT_KEY.set(self[1]))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        CURRENT_KEY.reset(self.__dict__["tokens"].pop())


def take_key(metadata: Iterable[Any] | None) -> tuple[bytes | None, Any]:
    """Return the call's key, None if it has none, and its metadata without it.

    An entry of the call outweighs the context.
    """
    found = CURRENT_KEY.get()
    if not metadata:
        return found, metadata
    entries = tuple(metadata)
    rest = tuple(entry for entry in entries if entry[0] != KEY_ENTRY)
    if len(rest) < len(entries):
        found = next(entry[1] for entry in entries if entry[0] == KEY_ENTRY)
        check_key(found)
    return found, rest
