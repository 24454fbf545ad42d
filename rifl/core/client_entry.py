"""One client's calls, and the attempts of those that run (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rifl.core.call import Call
from rifl.core.keyed_tracker import KeyedTracker
from rifl.core.later import Later
from rifl.core.policy import MethodPolicy
from rifl.core.record import CompletionRecord
from rifl.core.result_tracker import ResultTracker

__all__ = ["Attempt", "ClientEntry", "Kept"]

# A completed call: its fingerprint (None fits any) and its record (None where it
# has to be fetched from the store).
Kept = tuple[bytes | None, CompletionRecord | None]


class Attempt:
    """One run of a call, from its claim until it is settled.

    ``waiters`` are called, outside any lock, when it is. ``number`` is the
    attempt token: unique within this incarnation of the server. ``intended``:
    its intent is durable. ``record``: what it ended with, None where that made the
    call new again. ``recorded``: what the handler put into a transaction
    of its own, whether or not that committed. ``committed``: the same, once that is
    known to have committed; None says nothing. ``shared``: what tells how a
    transaction ended that it shared with other calls, None if there was none.
    """

    ended = False
    intended = False
    record: CompletionRecord | None = None
    recorded: CompletionRecord | None = None
    committed: CompletionRecord | None = None
    shared: Later | None = None
    waiters: Sequence[Callable[[], None]] = ()

    def __init__(self, entry: ClientEntry, call: Call, policy: MethodPolicy, number: int) -> None:
        self.entry = entry
        self.call = call
        self.policy = policy
        self.number = number


class ClientEntry:
    """The calls of one client or session.

    ``registered`` holds the databases in which its row is known to be durable.
    ``token`` is the capability that was last verified. ``keyed_only``: it is a named
    session's. ``recovered``: an earlier incarnation of the server knew it, too.
    """

    __slots__ = (
        "client_id",
        "dropped",
        "keyed",
        "keyed_only",
        "looked_at",
        "recovered",
        "registered",
        "running",
        "token",
        "tracker",
    )

    def __init__(self, client_id: int, window: int, *, note_released: bool = False) -> None:
        self.client_id = client_id
        self.tracker = ResultTracker(window, note_released=note_released)
        self.keyed: KeyedTracker | None = None
        self.running: dict[int | bytes, Attempt] = {}
        self.registered: set[str] = set()
        self.token = b""
        self.keyed_only = False
        self.recovered = False
        self.dropped = False
        # First incomplete when it was last looked at whether to rest.
        self.looked_at = 0

    def kept(self, call: Call) -> Kept | None:
        """Return what is kept of the call, None if it is not completed."""
        kept: Kept | None
        if call.key is None:
            kept = self.tracker.record(call.seq)  # type: ignore[arg-type]
        else:
            kept = None if self.keyed is None else self.keyed.record(call.key)
        return kept
