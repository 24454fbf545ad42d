"""Sendable answers: what fits beside a message, since HTTP/2 bounds headers (DESIGN §3).

gRPC's clients take 8 KiB of headers, and as much of trailers, unless they say otherwise. What
is larger fails there as an error of the transport's, which says nothing about the call, and
would fail again in every retry.
"""

from __future__ import annotations

from rifl.core._shared.errors import ResponseTooLarge
from rifl.core._shared.record import CompletionRecord, Metadata

# The handler's part of gRPC's 8 KiB; the status, the labels, and what gRPC adds need the rest.
MAX_METADATA_BYTES = 7 << 10
# What HTTP/2 counts for an entry beside its bytes (RFC 9113, 6.5.2).
_ENTRY_BYTES = 32
_CUT_MARK, _MARK_BYTES = "…", 9
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


def fits(metadata: Metadata, limit: int) -> bool:
    """Whether metadata can be sent in one block of headers."""
    return _metadata_bytes(metadata) <= limit


def cut(details: str, limit: int) -> str:
    """Return details that take at most so many bytes as gRPC writes them, cut if need be.

    At least nine. What UTF-8 cannot say (lone surrogates, parts of file names) is replaced, as in
    the record: gRPC fails to send it.
    """
    if not details.isascii():
        details = details.encode("utf-8", "replace").decode()
    # A character is 12 bytes at most.
    if 12 * len(details) <= limit:
        return details
    size = kept = 0
    for at, character in enumerate(details):
        size += _bytes_of(character)
        if size > limit:
            return details[:kept] + _CUT_MARK
        if size + _MARK_BYTES <= limit:
            kept = at + 1
    return details


def sendable(record: CompletionRecord, limit: int) -> CompletionRecord:
    """Return the record of an answer that can be sent, with its details cut if they are long.

    Where its metadata takes more than ``limit`` bytes: the one that says that it was too large.
    """
    if not (record.details or record.initial_metadata or record.trailing_metadata):
        # Most answers are a message, and nothing beside it.
        return record
    details = cut(record.details, limit // 2)
    size = _metadata_bytes(record.trailing_metadata) + sum(map(_bytes_of, details))
    if max(size, _metadata_bytes(record.initial_metadata)) > limit:
        error = ResponseTooLarge(
            f"the answer's metadata has more than {limit} bytes (max_metadata_bytes)"
        )
        return CompletionRecord(8, str(error), outcome=error.outcome, reason=error.reason)
    return record if details == record.details else record._replace(details=details)


def _metadata_bytes(metadata: Metadata) -> int:
    total = 0
    for key, value in metadata:
        # Binary values travel as base64.
        size = len(value) if isinstance(value, str) else len(value) * 4 // 3
        total += _ENTRY_BYTES + len(key) + size
    return total


def _bytes_of(character: str) -> int:
    if ord(character) in _PLAIN:
        return 1
    # Percent-encoded, each byte of it.
    return 3 * len(character.encode())
