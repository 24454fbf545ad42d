"""One client's calls, and the attempts of those that run (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rifl.core._serving.keyed_tracker import KeyedTracker
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

# A completed call: its fingerprint (None fits any), its record (None where it must be
# fetched from the store), and the seed it was sent with (0 fits any).
Kept = tuple[bytes | None, CompletionRecord | None, int]
_NONE: frozenset[int | bytes] = frozenset()
# So many of a client's calls that ran and are new again are kept; beyond, any may have run.
_MOST_RAN = 1024


class Attempt:
    """One run of a call, from its claim until it is settled.

    ``waiters`` are called, outside any lock, when it is. ``record``: what it
    ended with, None where that made the call new again. ``recorded``: what the handler
    put into a transaction, whether or not that committed. ``committed``: the same, once
    that is known to have committed; None says nothing. ``undone``: the handler's
    transaction is known to have been rolled back, unless its record stands. ``ran``: this
    run, or one before it, may have had an effect that no record tells of: given up, the
    call runs again, and is never resolved as not executed. ``owed``: its handler has
    ended, and its record is not written yet. ``crowded``: its transaction failed
    for what others hold, those before it in the same one, maybe. ``unclaimed``: it runs before
    the store was asked about the call, which the commit of its transaction decides. ``beside``:
    such a run of the call may be somewhere, and commit later if no record stands then. ``doubt``:
    why it is unknown what its handler committed, empty if that is known. ``lent``: what holds
    the transaction of a ``rifl.transaction`` that its handler is in, where the handler brought it.
    ``revoked``: its handler did not end, and commits nothing any more. ``waits``: its handler waits
    for others in a transaction that they share: for its turn, or for the commit. ``committing``:
    what it did may be committed from now on. ``duplicates``: how many arrivals wait for it here.
    ``task``: what runs its coroutine, while that may be cancelled; ``unheard``: a shell's, once its
    own caller has left. ``sought``: its key is being looked up, so that it is not decided yet;
    ``recorded_before``: what its client had recorded when that began. ``size``: bytes of its record
    in the store that finds keys.

    A store may have attempts of its own class (see ``ClientTable``).
    """

    ended = False
    record: CompletionRecord | None = None
    recorded: CompletionRecord | None = None
    committed: CompletionRecord | None = None
    undone = False
    ran = False
    owed = False
    crowded = False
    waits = False
    committing = False
    duplicates = 0
    task: Any = None
    unheard: Any = None
    sought = False
    size = 0
    recorded_before = (0, 0)
    unclaimed = False
    beside = False
    doubt = ""
    lent: object = None
    revoked = False
    waiters: Sequence[Callable[[], None]] = ()

    def __init__(self, entry: ClientEntry, call: Call, policy: MethodPolicy) -> None:
        self.entry = entry
        self.call = call
        self.policy = policy


class ClientEntry:
    """The calls of one client or session.

    ``registered`` holds the databases in which its row is known to be durable.
    ``token`` is the capability that was last verified. ``keyed_only``: it is a named
    session's. ``recovered``: an earlier incarnation of the server knew it, too. ``ran``:
    the identities of calls that ran and are new again, None where any may have. Where the store
    finds keys, ``recorded`` counts those of this entry, and their bytes; with ``kept_keys``, once
    that is known, it is at least what the store has.
    """

    __slots__ = (
        "client_id",
        "dropped",
        "kept_keys",
        "keyed",
        "keyed_only",
        "looked_at",
        "ran",
        "recorded",
        "recovered",
        "registered",
        "running",
        "token",
        "tracker",
    )

    def __init__(
        self, client_id: int, window: int, *, released: list[tuple[int, int]] | None = None
    ) -> None:
        self.client_id = client_id
        self.tracker = ResultTracker(window, client_id=client_id, released=released)
        self.keyed: KeyedTracker | None = None
        self.running: dict[int | bytes, Attempt] = {}
        self.registered: set[str] = set()
        self.token = b""
        self.keyed_only = False
        self.recovered = False
        self.recorded = (0, 0)
        self.kept_keys: tuple[int, int] | None = None
        self.ran: frozenset[int | bytes] | None = _NONE
        self.dropped = False
        # First incomplete when the client was last looked at: is it idle?
        self.looked_at = 0

    def kept(self, call: Call) -> Kept | None:
        """Return what is kept of the call, None if it is not completed."""
        kept: Kept | None
        if call.key is None:
            kept = self.tracker.record(call.seq)  # type: ignore[arg-type]
        else:
            kept = None if self.keyed is None else self.keyed.record(call.key)
        return kept

    def note_run(self, identity: int | bytes) -> None:
        """Note that a call that is new again has run."""
        if self.ran is not None:
            self.ran |= {identity}
            if self.may_have_run_any() and len(self.ran) > _MOST_RAN:
                self.ran = None

    def may_have_run(self, identity: int | bytes) -> bool:
        """Whether a call that is new may have run."""
        return self.ran is None or identity in self.ran

    def may_have_run_any(self) -> bool:
        """Whether any that is not acknowledged may have run."""
        if self.ran:
            first = self.tracker.first_incomplete
            self.ran = frozenset(
                each for each in self.ran if isinstance(each, bytes) or each >= first
            )
        return self.ran is None or bool(self.ran)
