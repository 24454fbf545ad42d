"""The completion record: an answer, whole (RIFL §3.3; DESIGN §4)."""

from __future__ import annotations

from typing import NamedTuple

from _rifl_ground.refusals import Outcome

Metadata = tuple[tuple[str, str | bytes], ...]


class CompletionRecord(NamedTuple):
    """The answer of a call, and of every retry of it.

    ``code`` is a ``google.rpc.Code`` number; ``response`` the serialised message,
    None if the handler gave none. ``reason`` names the rifl refusal that
    the record is (``OUTCOME_UNKNOWN``, ``RESPONSE_TOO_LARGE``, ``NOT_EXECUTED``);
    it is empty for an answer of the handler's. ``messages`` are those of a response
    stream, which has no ``response``.
    """

    code: int = 0
    details: str = ""
    response: bytes | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()
    outcome: Outcome = Outcome.EXECUTED
    reason: str = ""
    messages: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Bytes it takes to keep, roughly: the response, the text and the metadata."""
        total = len(self.response or b"") + len(self.details)
        for key, value in (*self.initial_metadata, *self.trailing_metadata):
            total += len(key) + len(value)
        return total + sum(map(len, self.messages))
