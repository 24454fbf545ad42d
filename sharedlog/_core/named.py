"""Named producers: an append under a name goes on where the name stopped (DESIGN-LOG §12, L3).

``named/NAME`` has the highest seq of the name, what tells its content, and its last LSN, until an
operator forgets the name. Each append says which seq it follows, so that of two who use one name
the later is told, and so is one whose own memory was restored from a backup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.arguments import check_whole, shown
from sharedlog._core.calling import portable
from sharedlog._core.commit import LSN_BYTES, Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import (
    Entry,
    EntryKind,
    ProducerDecision,
    checksum_of,
    committed_bodies,
    read_row,
)
from sharedlog._core.errors import (
    AlreadyCommitted,
    CorruptLog,
    InvalidRequest,
    PredecessorMismatch,
)
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.homes import erase_state, vacate
from sharedlog._core.names import NameKind, owner_of
from sharedlog._core.producers import Appended, NewMessage, number
from sharedlog._core.spans import decided, other_spans
from sharedlog._core.steps import Get, Lsns, Read, Rows, Rule, Scan

MAX_SEQ = (1 << 63) - 1
_ROWS = 1000
_CONTENT_BYTES = 16
# In place of an LSN, where an append had no entry.
_NO_ENTRY = bytes(LSN_BYTES)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,179}")
_OWN_NAME = re.compile(r"@[a-z]+:[A-Za-z0-9_./:-]{1,168}")
_OWN_KINDS = {NameKind.CONSUMER, NameKind.OUTBOX, NameKind.LETTERS}


class Turn(NamedTuple):
    """One append of a name: its seq, and the seq that it follows (0: it is the first)."""

    name: str
    seq: int
    follows: int


# How an append without messages is answered, each time.
_RECORDED = Appended(0, None, 0)


def named_key(name: str) -> str:
    """Return the key of a name's highest seq."""
    return f"named/{name}"


def check_producer_name(name: str) -> None:
    """Raise ``InvalidRequest`` unless this can name a producer."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{shown(name)} cannot name a producer: 1 to 180 letters, digits, _ . / : -, "
            "beginning with one of the first three"
        )


def check_any_name(name: str) -> None:
    """Raise ``InvalidRequest`` unless this names a producer: a user's, or one of the log's own."""
    own = isinstance(name, str) and _OWN_NAME.fullmatch(name)
    if not own or owner_of(name)[0] not in _OWN_KINDS:
        check_producer_name(name)


def check_turn(turn: Turn) -> None:
    """Raise ``InvalidRequest`` for a turn that no name has."""
    check_any_name(turn.name)
    check_whole(turn.follows, "follows", 0, MAX_SEQ)
    check_whole(turn.seq, "seq", 1, MAX_SEQ)
    if turn.follows >= turn.seq:
        raise InvalidRequest(f"seq {turn.seq} cannot follow {turn.follows}")


@portable
def highest_of(name: str) -> Rule[int]:
    """Return the highest seq of a name; 0: it was never used, or was forgotten."""
    key = named_key(name)
    return seq_of((yield Get((key,)))[key])


@portable
def append_named(
    turn: Turn,
    content: bytes,
    messages: Sequence[NewMessage],
    *,
    fence: Fence | None = None,
) -> Rule[Appended]:
    """Append messages as a name's next, committed by this append: once.

    Without messages the seq is recorded all the same, and nothing else is written.
    ``content``: 16 bytes that tell what is appended, the same whenever it is tried. A seq that
    was appended with that content is answered, before the fence is judged. Raises
    ``AlreadyCommitted``, ``PredecessorMismatch`` and ``Fenced``.
    """
    check_turn(turn)
    bodies = committed_bodies([each.envelope for each in messages], 0, turn.seq, turn.name)
    entries = tuple(
        [NewEntry(body, each.tags) for body, each in zip(bodies, messages, strict=True)]
    )
    return (yield from once_named(turn, content, Commit(entries=entries), fence))


@portable
def decide_named(
    turn: Turn,
    content: bytes,
    decisions: Sequence[ProducerDecision],
    *,
    fence: Fence | None = None,
) -> Rule[Appended]:
    """Append the marker that commits what producers have pending, as a name's next: once.

    As ``append_named``, and refused as ``decide`` is.
    """
    check_turn(turn)
    commit = decided(EntryKind.MARKER, 0, turn.seq, decisions, name=turn.name)
    try:
        return (yield from once_named(turn, content, commit, fence))
    except Refused as refused:
        raise other_spans(commit, refused) from refused


class Named(NamedTuple):
    """A named producer, and its highest seq."""

    name: str
    seq: int


@portable
def all_names() -> Rule[list[Named]]:
    """Return the named producers that were not forgotten."""
    found = yield Scan(named_key(""))
    return [
        Named(key.removeprefix(named_key("")), seq_of(value))
        for key, value in sorted(found.items())
    ]


@portable
def forget(name: str) -> Rule[int]:
    """Forget a name, and return its highest seq: for operators, since it may then be used anew.

    Of a consumer's shard what is pending, as its next seq, is rolled back, whatever its store has
    committed; and where the log has its state, that is gone.
    """
    vacated = yield from vacate(name)
    yield from erase_state(name)
    key = named_key(name)
    while True:
        value = (yield Get((key,)))[key]
        if value is None:
            return int(vacated)
        try:
            yield Commit((Condition(key, value),), (Put(key, None),))
        except Refused:
            continue
        return seq_of(value)


def once_named(turn: Turn, content: bytes, commit: Commit, fence: Fence | None) -> Rule[Appended]:
    """Have a commit happen as a name's next, unless that is in the log; see ``append_named``.

    A refusal by the commit's own conditions is ``Refused``.
    """
    if len(content) != _CONTENT_BYTES:
        raise InvalidRequest(f"what tells a content has {_CONTENT_BYTES} bytes")
    key = named_key(turn.name)
    keys = (key,) if fence is None else (key, fence_key(fence.name))
    if commit.entries:
        checksum = checksum_of(commit.entries[-1].body)
        put = Put(key, number(turn.seq) + content, Stamp.LAST)
    else:
        checksum, put = 0, Put(key, number(turn.seq) + content + _NO_ENTRY)
    while True:
        found = yield Get(keys)
        value = found[key]
        if value is not None and value[:-LSN_BYTES] == number(turn.seq) + content:
            return Appended(int.from_bytes(value[-LSN_BYTES:], "big"), None, checksum)
        mine = [Condition(key, value)]
        if fence is not None:
            check_fence(fence, found[fence_key(fence.name)])
            mine.append(condition_of(fence))
        _check_next(turn, seq_of(value))
        whole = Commit(
            (*mine, *commit.conditions),
            (put, *commit.puts),
            commit.entries,
        )
        try:
            lsns: Lsns = yield whole
        except Refused as refused:
            if any(refused.found[each.key] != each.value for each in mine):
                continue
            raise
        return Appended(lsns.last, lsns.first, checksum) if commit.entries else _RECORDED


def _check_next(turn: Turn, highest: int) -> None:
    if turn.seq <= highest:
        raise AlreadyCommitted(
            f"{turn.name!r} is at {highest}: seq {turn.seq} was committed, "
            + ("with other content" if turn.seq == highest else "or passed over")
        )
    if turn.follows != highest:
        raise PredecessorMismatch(
            f"{turn.name!r} is at {highest}, and this follows {turn.follows}", highest
        )


def begun_at(seq: int) -> bytes:
    """Return what is kept of a name that goes on behind a seq, of whose append nothing is known."""
    return number(seq) + bytes(_CONTENT_BYTES) + _NO_ENTRY


def seq_of(value: bytes | None) -> int:
    """Return the seq of what is kept under a name; 0: nothing is. Raises ``CorruptLog``."""
    if value is None:
        return 0
    if len(value) < 8 + LSN_BYTES:
        raise CorruptLog("what is kept of a named producer is not what was written")
    return int.from_bytes(value[:8], "big")


@portable
def placed_by(turn: Turn, lsn: int) -> Rule[tuple[list[str], int]]:
    """Return the substreams' tags of what an earlier append of a name committed, in its order.

    And the checksum of the entry that names the commit, at ``lsn``. Raises ``TrimmedLog`` where
    that is gone.
    """
    last = _entries((yield Read(lsn - 1, 1)))[0]
    if (last[0].name, last[0].seq) != (turn.name, turn.seq):
        raise CorruptLog(f"LSN {lsn} is not what {turn.name!r} committed as {turn.seq}")
    begins = [begin for each in last[0].decisions for begin in each.begins.values()]
    after = min(begins, default=lsn - last[0].index) - 1
    found: list[str] = []
    while after < lsn:
        for entry, tag in _entries((yield Read(after, _ROWS))):
            if entry.lsn <= lsn and _of(last[0], entry, tag):
                found.append(tag)
            after = entry.lsn
    return found, last[0].checksum


def _entries(rows: Rows) -> list[tuple[Entry, str]]:
    if not rows.rows:
        raise CorruptLog(f"the log ends at {rows.through}, before what was appended")
    return [(read_row(row), row.tags[0] if row.tags else "") for row in rows.rows]


def _of(last: Entry, entry: Entry, tag: str) -> bool:
    """Whether the entry is a message of the commit that ``last`` names."""
    if last.kind is EntryKind.COMMITTED:
        return entry.last_lsn == last.lsn
    return entry.kind is EntryKind.PENDING and any(
        each.producer == entry.producer and each.begins.get(tag, entry.lsn + 1) <= entry.lsn
        for each in last.decisions
    )
