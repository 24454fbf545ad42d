"""The reach of a player: what of a log its steps may read and write (DESIGN-LOG §15).

Where a server has the log, a player's rules run where the player is, and each of their steps is
judged by this before it is carried out: a player writes its own rows, its duty, holds of its own
names, and dead letters under its fence, and nothing else. It may read all entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from _rifl_ground.refusals import Denied
from sharedlog._core.catalog import STREAMS
from sharedlog._core.commit import Commit, NewEntry, Put, Stamp
from sharedlog._core.entry import EntryKind, Row, read_row
from sharedlog._core.errors import CorruptLog, NotAllowed
from sharedlog._core.fences import fence_key
from sharedlog._core.holds import HOLDS, hold_key
from sharedlog._core.incarnation import INCARNATION
from sharedlog._core.named import named_key
from sharedlog._core.names import NameKind, own_name
from sharedlog._core.player.deadletters import PRODUCERS
from sharedlog._core.player.rows import check_part, row_key
from sharedlog._core.whole import TRIMMED

_NUMBER_BYTES = 8
_LETTERS = named_key(PRODUCERS)
_ALL_PLAYERS = row_key("", "", "").partition("/")[0] + "/"


class Asked(NamedTuple):
    """What of a commit must be checked against the caller's rights: entries, and new streams.

    ``entries``: the tag and the envelope of each.
    """

    entries: list[tuple[tuple[str, ...], bytes]]
    streams: list[str]


class Reach:
    """What one player may do ("": all players); raises ``NotAllowed`` for what is beyond it."""

    def __init__(self, player: str) -> None:
        """Raises ``InvalidRequest`` for what names no player."""
        if player:
            check_part(player, "player")
        self._player = player
        duty = f"player/{player}"
        self._fence = fence_key(f"*{duty}")
        self._beat = f"duty/{duty}"
        rows, holds = row_key(player, "", ""), hold_key(own_name(NameKind.PLAYER, player, ""), "")
        self._prefixes = (rows[:-1], holds[:-1]) if player else ()

    def check_get(self, keys: Iterable[str]) -> None:
        """Judge what is read of keys."""
        for key in keys:
            known = key in (TRIMMED, HOLDS, INCARNATION) or key.startswith(STREAMS)
            if not known and not self._mine(key):
                raise self._beyond(key)

    def check_scan(self, prefix: str) -> None:
        """Judge what is read of all keys that begin so."""
        if self._player:
            if not prefix.startswith(self._prefixes):
                raise self._beyond(prefix)
        elif prefix != _ALL_PLAYERS:
            raise self._beyond(prefix)

    def check_commit(self, commit: Commit) -> Asked:
        """Check what is written; return what must be checked against the caller's rights."""
        conditions = dict(commit.conditions)
        self.check_get(conditions)
        streams: list[str] = []
        letters: list[str] = []
        for put in commit.puts:
            key = put.key
            if put.term_s is not None:
                raise self._beyond(f"{key}, for a time")
            if key.startswith(STREAMS) and key in conditions and conditions[key] is None:
                streams.append(key.removeprefix(STREAMS))
            elif key in (HOLDS, self._fence):
                self._check_grown(put, conditions)
            elif key.startswith(_LETTERS) and put.stamp is Stamp.LAST and key in conditions:
                letters.append(key.removeprefix(named_key("")))
            elif not self._mine(key) or key.startswith(_LETTERS) or put.stamp is not Stamp.NONE:
                raise self._beyond(key)
        if bool(commit.entries) is not (len(letters) == 1) or len(letters) > 1:
            raise self._beyond("an entry that is no dead letter")
        if letters and self._fence not in conditions:
            raise self._beyond("an entry that is not under the player's fence")
        return Asked([self._letter(each, letters[0]) for each in commit.entries], streams)

    def _mine(self, key: str) -> bool:
        if not self._player:
            return False
        mine = key in (self._fence, self._beat) or key.startswith(_LETTERS)
        return mine or key.startswith(self._prefixes)

    def _check_grown(self, put: Put, conditions: dict[str, bytes | None]) -> None:
        """Judge a counter: it is what it was, or more, and eight bytes."""
        value, key = put.value or b"", put.key
        before = conditions.get(key) or b"" if key in conditions else None
        if before is None or len(value) != _NUMBER_BYTES or put.stamp is not Stamp.NONE:
            raise self._beyond(key)
        grown = int.from_bytes(value, "big") - int.from_bytes(before, "big")
        if grown not in (0, 1):
            raise self._beyond(key)

    def _letter(self, entry: NewEntry, name: str) -> tuple[tuple[str, ...], bytes]:
        try:
            found = read_row(Row(0, entry.body, entry.tags))
        except CorruptLog as error:
            raise self._beyond("an entry that is none") from error
        if found.kind is not EntryKind.COMMITTED or found.producer or found.name != name:
            raise self._beyond("an entry that is no dead letter")
        return entry.tags, found.message

    def _beyond(self, what: str) -> NotAllowed:
        who = f"player {self._player!r}" if self._player else "who is no player"
        return NotAllowed(f"{what[:200]} is not for {who}", Denied("right", "play"))
