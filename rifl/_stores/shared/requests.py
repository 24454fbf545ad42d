"""Requests to a shared store, each one atomic step there, and their replies."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from _rifl_ground.texts import hides
from rifl._stores.rows import Move, RowCall
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call

# What one beat adds to the time that was lived through, at most; and by how much a key is
# kept longer, since the counter may be so much behind when its call is completed.
MOST_LIVED_S = 2.0


@hides("token")
class Claim(NamedTuple):
    """Decide about a call and claim it if it is new (DESIGN §4, steps 2 to 6).

    In this order: a known call's fingerprint must match (``MISMATCH``), then it
    is ``COMPLETED`` or ``RUNNING``; a seq that was acknowledged is ``STALE``; a
    client without a row is ``UNKNOWN_CLIENT``, a session's id whose session ended
    ``CLOSED``; a seq for a session is ``NEEDS_KEY``. For known and new calls of a
    client that is alive its lease is renewed and the acknowledgements are applied
    (a keyed call carries none), their records deleted in the same step; only then
    ``refusing`` is looked at (``REFUSING``), and the window, or the bounds on keys
    (``WINDOW``).

    A new call is in progress from then on under ``token``, run by ``owner``. The
    claim of a plain call is the intent, too: durable before the reply. A request that is repeated
    because its reply was lost, with the same token, is ``NEW`` again.

    ``take_over`` names the attempt, found ``RUNNING`` before, that may be replaced:
    if it still runs, ``lost`` says what becomes of the call. Empty: the call is
    judged as if it were new (``CLOSED``, ``UNKNOWN_CLIENT``, ``REFUSING``) but for the
    bounds, and claimed under the new token; every write of the old one is refused from
    then on. Else ``lost`` is the record it gets, and the call is ``COMPLETED``.
    ``owner`` is noted as waiting where the call is ``RUNNING``, and is woken with
    the attempt's token when that ends.

    A namespace (``is_namespace``) needs no row and no lease: it is alive, and nothing
    of it is kept but its keys. ``retention_s``: how long the record of a keyed call
    is kept from its completion on any replica, in time lived through; None for
    as long as the client lives, as always with a session's.

    ``until_s``: a claim that arrives when the store's clock is past this, in seconds,
    is ``LATE``: nothing is done. See ``TakeBack``.
    """

    call: Call
    kind: Kind
    token: bytes
    owner: str
    refusing: bool
    window: int
    max_keys: int
    max_key_bytes: int
    take_over: bytes = b""
    lost: bytes = b""
    retention_s: float | None = None
    until_s: float | None = None


class Found(enum.Enum):
    """What a claim found; the value is what scripts and statements say."""

    NEW = "new"
    RUNNING = "running"
    COMPLETED = "completed"
    STALE = "stale"
    MISMATCH = "mismatch"
    UNKNOWN_CLIENT = "unknown-client"
    CLOSED = "closed"
    NEEDS_KEY = "needs-key"
    REFUSING = "refusing"
    WINDOW = "window"
    LATE = "late"


@hides("token")
class Claimed(NamedTuple):
    """The reply to a claim.

    ``RUNNING`` comes with the attempt's token, owner and kind, ``COMPLETED`` with
    the serialised record; ``verified`` is false where no fingerprint is kept of it.
    ``noted`` is false where ``RUNNING`` could not be noted as waited for, since the
    call was being recorded just then: no waiting caller will be woken. It is false, too, while
    an unclaimed call is in an open transaction (``RecordUnclaimed``): the token stands for
    that then, and to take it over ends the transaction.
    """

    found: Found
    token: bytes = b""
    owner: str = ""
    kind: Kind = Kind.PLAIN
    record: bytes = b""
    noted: bool = True
    verified: bool = True


@hides("token")
class Finish(NamedTuple):
    """Record a call's answer if the attempt is current, and wake who waits for it.

    With it the call's fingerprint is kept, which a request stream has only now.

    ``unknown``: the record says that the outcome is not known, which is remembered
    whatever becomes of the client. ``left``: so it says, and what the handler began may go
    on for as long as the replica lives, to which the record is tied as that of a call which
    was taken for lost. One that is not, and comes after such a record of the same attempt,
    says that the attempt has ended.
    """

    call: Call
    token: bytes
    record: bytes
    unknown: bool = False
    left: bool = False

    @property
    def how(self) -> str:
        """What scripts and statements call it."""
        return "left" if self.left else "unknown" if self.unknown else "finish"


@hides("token")
class RecordUnclaimed(NamedTuple):
    """Record an unclaimed call, in a handler's own transaction, which commits at once.

    The client lives, the call is neither known nor acknowledged, and the window has room: judged
    while the client cannot be removed, and what was acknowledged in a later statement than the
    one that writes the record, so that no other record of the call can have come and gone
    between. The reply is an ``Ending``: anything but ``DONE`` has the transaction roll back.
    Acknowledgements are applied, and the lease is renewed, if the commit travels with it, and
    no other call does so just now.
    """

    call: Call
    token: bytes
    owner: str
    record: bytes
    window: int


@hides("token")
class FinishUnclaimed(NamedTuple):
    """Record an unclaimed call of an idempotent method, if no record stands.

    As ``Finish`` where there is no attempt to be current: known, recorded, acknowledged and full
    are judged as by ``RecordUnclaimed``. ``FENCED``: it runs elsewhere, or there is no room.
    """

    call: Call
    token: bytes
    owner: str
    record: bytes
    window: int
    unknown: bool = False


class Ending(enum.Enum):
    """What became of a record, or of an abandoned attempt."""

    # Written now; or the same record stands already, as a rule by the same attempt, whose
    # reply was lost.
    DONE = "done"
    # Another record stands.
    STANDS = "stands"
    # Another attempt has taken the call over, and runs.
    FENCED = "fenced"
    # The client acknowledged the call meanwhile: nothing is kept.
    ACKNOWLEDGED = "acknowledged"
    # The client is gone. A namespace never is.
    GONE = "gone"


class Finished(NamedTuple):
    """The reply to ``Finish``, ``Abandon`` and ``Look``; the record that stands, if any."""

    ending: Ending
    record: bytes = b""


@hides("token")
class Abandon(NamedTuple):
    """Make a call new again if the attempt is current, and wake who waits for it."""

    call: Call
    token: bytes


@hides("token")
class TakeBack(NamedTuple):
    """Abandon a claim whose reply was lost; the reply is the store's clock, in seconds.

    The claim may arrive after this. One that is sent after a reply that was past the
    claim's ``until_s`` is the last that is needed: a claim that was begun in time has
    ended by then and is undone, and any other is ``LATE``.
    """

    call: Call
    token: bytes


@hides("token")
class Look(NamedTuple):
    """Read the record that stands: ``STANDS``; else ``FENCED`` or ``DONE`` (it runs)."""

    call: Call
    token: bytes


class CountBeat(NamedTuple):
    """Count this replica's beat, remove the entries of dead ones, and read all.

    ``leaving``: remove its own instead, and no more; what it still runs is lost from then
    on, and the reply says nothing.

    ``dead`` are incarnations with the beats they stood still at. The reply is
    ``Beats``.

    Retentions are counted in time that was lived through, which no clock says: the store
    keeps a counter of it, and one replica at a time moves it, by what ``reading_s``, a
    clock of its own that never jumps, has moved since its last beat; at most by
    ``MOST_LIVED_S``. When that replica is gone, the next one that beats goes on from there.
    """

    owner: str
    dead: tuple[tuple[str, int], ...] = ()
    leaving: bool = False
    reading_s: float = 0.0


class Beats(NamedTuple):
    """The beats that the store holds, by incarnation, and its clock, in seconds."""

    beats: dict[str, int]
    now_s: float


class LookAtClient(NamedTuple):
    """Read what is known of a client: a ``SeenClient``, None once its records are gone."""

    client_id: int


class SeenClient(NamedTuple):
    """Whom a client's lease counts for, and what it has acknowledged: ranges are inclusive."""

    holder: bytes = b""
    first_incomplete: int = 1
    completed: Sequence[tuple[int, int]] = ()


class GetRows(NamedTuple):
    """Read conditional rows: a mapping of those that are there."""

    keys: tuple[str, ...]


class MoveRows(NamedTuple):
    """Move conditional rows, durably, all or none; the reply is whether they were as expected.

    Carried out twice it says that they were not.
    """

    moves: tuple[Move, ...]


class MoveInside(NamedTuple):
    """A move in a handler's own transaction, in the place of ``Finish``."""

    call: RowCall
    move: Move

    @property
    def record(self) -> bytes:
        """What is written."""
        return self.move.value


# What is written in a handler's own transaction.
Written = Finish | RecordUnclaimed | MoveInside
