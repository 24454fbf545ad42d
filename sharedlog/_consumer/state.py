"""The state of a handler's substream, as a mapping: what ``Effects.state`` is."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import Any

from _rifl_ground.forks import this_process
from sharedlog._consumer.lending import handler_ended
from sharedlog._core.consumer.state import Changes, Kept
from sharedlog._core.errors import InvalidRequest
from sharedlog._log.place import forked

# Before a value that is bytes; no JSON begins so.
_BYTES = b"\x00"


class ShardState(MutableMapping[str, Any]):
    """A mutable mapping of texts to bytes, or to what JSON has.

    What it returns is a copy: to change a value, assign it. Of no use once the handler returned.
    """

    def __init__(self, changes: Changes) -> None:
        """Of a transaction."""
        self._changes: Changes | None = changes
        self._process = this_process()

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key; ``KeyError``: there is none."""
        value = self._opened().get(_checked(key))
        if value is None:
            raise KeyError(key)
        return decoded(value)

    def __setitem__(self, key: str, value: Any) -> None:
        """Set the value of a key, if and once the transaction commits."""
        self._opened().put(_checked(key), _encoded(value))

    def __delitem__(self, key: str) -> None:
        """Remove a key; ``KeyError``: it is not there."""
        changes = self._opened()
        if changes.get(_checked(key)) is None:
            raise KeyError(key)
        changes.put(key, None)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value."""
        return isinstance(key, str) and self._opened().get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Of all keys; not while it is changed."""
        return iter(self._opened())

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._opened())

    def __repr__(self) -> str:
        """How large it is."""
        return "<State>" if self._changes is None else f"<State of {len(self)} keys>"

    def kept(self) -> Kept:
        """Return what ``back_to`` goes back to."""
        return self._opened().kept()

    def back_to(self, kept: Kept) -> None:
        """Undo what was changed since."""
        self._opened().back_to(kept)

    def end(self) -> None:
        """The handler has ended."""
        self._changes = None

    def _opened(self) -> Changes:
        if this_process() is not self._process:
            raise forked()
        if self._changes is None:
            raise handler_ended()
        return self._changes


def decoded(value: bytes) -> Any:
    """Return a value as handlers have it, of what the state holds."""
    return value[1:] if value[:1] == _BYTES else json.loads(value)


def _checked(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidRequest(f"{key!r:.100} is no key of a state: it is a text")
    return key


def _encoded(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES + bytes(value)
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{value!r:.100} is neither bytes nor JSON: {error}") from error
