"""An arriving call as the rules see it: a checked header and a fingerprint."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from rifl.core._shared.errors import BadHeader
from rifl.core._shared.identity import MAX_SEQ, RpcId
from rifl.core._shared.record import Metadata

# Ranges a header may carry (DESIGN §4).
MAX_RANGES = 64
_MAX_POSITION = 2**63


def ranges_from_pairs(first_incomplete: int, pairs: Sequence[int]) -> list[tuple[int, int]]:
    """Decode a header's (gap, run) pairs; raises ``BadHeader``."""
    if len(pairs) % 2 or len(pairs) > 2 * MAX_RANGES:
        raise BadHeader(f"{len(pairs)} numbers are not at most {MAX_RANGES} (gap, run) pairs")
    ranges: list[tuple[int, int]] = []
    position = first_incomplete
    for at in range(0, len(pairs), 2):
        gap, run = pairs[at], pairs[at + 1]
        if not gap or not run:
            raise BadHeader("a gap and a run are at least 1")
        first = position + gap
        position = first + run
        if position > _MAX_POSITION:
            raise BadHeader("completed ranges reach beyond 2^63-1")
        ranges.append((first, position - 1))
    return ranges


def pairs_from_ranges(first_incomplete: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Encode ranges, maximal and sorted, as a header's (gap, run) pairs."""
    pairs: list[int] = []
    position = first_incomplete
    for first, last in ranges:
        pairs += (first - position, last + 1 - first)
        position = last + 1
    return pairs


def check_acknowledgements(
    seq: int, first_incomplete: int, completed: Sequence[tuple[int, int]]
) -> None:
    """Raise ``BadHeader`` unless the numbers of a header fit together."""
    if not 1 <= seq <= MAX_SEQ:
        raise BadHeader(f"seq {seq} is not in 1..2^63-1")
    if not 1 <= first_incomplete <= seq:
        raise BadHeader(f"first incomplete {first_incomplete} is not in 1..seq {seq}")
    below = first_incomplete
    for first, last in completed:
        if first <= below or last < first or last > MAX_SEQ:
            raise BadHeader("completed ranges are not sorted, disjoint and above first incomplete")
        if first <= seq <= last:
            raise BadHeader(f"completed ranges cover the call's own seq {seq}")
        below = last


def acknowledges_more(
    first_incomplete: int,
    completed: Sequence[tuple[int, int]],
    before: int,
    ranges: Sequence[tuple[int, int]],
) -> bool:
    """Whether acknowledgements say more than ``before``, and maximal ``ranges`` above it."""
    return first_incomplete > before or any(
        last >= before and not any(low <= first and last <= high for low, high in ranges)
        for first, last in completed
    )


class Call:
    """One arrival of a call, its header parsed and checked against itself.

    Exactly one of ``seq`` and ``key`` is set; ``identity`` is that one, unique
    within the client id. ``completed`` are inclusive ranges. ``fingerprint`` covers
    method and request; None matches any (a resolution). ``others`` are the fingerprints under
    which the same payload may have been recorded as well. ``peer`` is the
    authenticated identity a bound token was checked against. ``stamp`` is the
    client's time in microseconds and its random seed. ``configuration`` is the number
    of a group's configuration that the client knows, 0 for none; ``conflict_keys`` are those
    that it found itself, if any. ``marks`` is what the
    store has told of the answer beside it, and ``extra`` the store's own. ``streamed``:
    one side is a stream, so that this arrival can run its handler once only. ``store``: what
    granted the client id, as the header says; 0 if it says nothing. ``seed``: that of a
    sequenced call's header, which no other client's call of the same identity has; 0 for a key.
    ``try_ms``: for how long the call may be tried, if that is longer than this attempt's deadline,
    whose time was ``attempt_s``; ``tried_until`` is the shell's clock then.
    """

    # What most calls leave unchanged; set on the class, not for every call.
    completed: Sequence[tuple[int, int]] = ()
    attempt: int = 1
    key: bytes | None = None
    peer: bytes = b""
    max_response_bytes: int = 0
    stamp: tuple[int, int] = (0, 0)
    retried_by_grpc: bool = False
    configuration: int = 0
    conflict_keys: frozenset[int] = frozenset()
    marks: Metadata = ()
    extra: Any = None
    streamed: bool = False
    # Whether its caller has left, where the shell is told so.
    gone: bool = False
    store: int = 0
    try_ms: int = 0
    attempt_s = tried_until = 0.0
    seed: int = 0
    # Where a caller is that has no name, and shares a namespace with all others.
    source: str = ""
    # Whether a store was asked about it: it has no run without a claim from then on.
    asked: bool = False
    # The operator's, newest first: fingerprints are HMACs under them.
    fingerprint_keys: Sequence[bytes] = ()
    others: Sequence[bytes] = ()

    def __init__(
        self,
        client_id: int,
        token: bytes,
        seq: int | None,
        key: bytes | None = None,
        first_incomplete: int = 1,
        completed: Sequence[tuple[int, int]] = (),
        attempt: int = 1,
        fingerprint: bytes | None = None,
        method: str = "",
    ) -> None:
        self.client_id = client_id
        self.token = token
        self.seq = seq
        if key is None:
            self.identity: int | bytes = seq  # type: ignore[assignment]
        else:
            self.key = self.identity = key
        self.first_incomplete = first_incomplete
        self.completed = completed
        self.attempt = attempt
        self.fingerprint = fingerprint
        self.method = method

    @property
    def place(self) -> bytes:
        """Where its record belongs: identity and method, as bytes that no other call has.

        The client id in 8 bytes, signed and big-endian; ``s`` and the seq in 8 bytes, or ``k``,
        the key's length in 4 bytes, and the key; then the method as UTF-8.
        """
        identity = self.identity
        if isinstance(identity, int):
            named = b"s" + identity.to_bytes(8, "big")
        else:
            named = b"k" + len(identity).to_bytes(4, "big") + identity
        return self.client_id.to_bytes(8, "big", signed=True) + named + self.method.encode()

    def take_digest(self, digest: bytes) -> None:
        """Set the fingerprint: the digest of method and request, or HMACs of it if there are keys.

        Bound to the call's place, so that equal requests of two calls do not look equal.
        """
        self.fingerprint = digest
        if self.fingerprint_keys:
            told = self.place + digest
            self.fingerprint, *self.others = [
                hmac.digest(key, told, "sha256")[: len(digest)] for key in self.fingerprint_keys
            ]

    def take_other(self) -> bool:
        """Replace the fingerprint by one that was not tried; False if there is none."""
        if self.others:
            self.fingerprint, *self.others = self.others
            return True
        return False

    @property
    def rpc_id(self) -> RpcId:
        """The identity as the application sees it."""
        return RpcId(self.client_id, self.seq, self.key)
