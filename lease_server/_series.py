"""Numbered sessions: those of one series close in order, for good (DESIGN §8). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

# How long the row of a closed number is kept once a higher one is closed: until its
# records are dropped, which sweeps do.
SUPERSEDED_S = 600.0

# The name of a numbered session: its series, "#", its number.
_NUMBERED = re.compile(r"(.+)#(0|[1-9][0-9]{0,17})", re.DOTALL)
_Key = tuple[bytes, str]


def numbered(name: str) -> tuple[str, int] | None:
    """Return series and number of ``series#number``, None for any other name."""
    found = _NUMBERED.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


class SeriesBook:
    """Which numbers of each series are held, and how far it is closed.

    A series is closed up to its highest number that ended; what is at or below
    that is refused whether its row is held or not, so those rows need not be kept.

    Invariant: ``closed_up_to`` of a series never goes back while any of its rows
    is held.
    """

    def __init__(self) -> None:
        self._ids: dict[_Key, dict[int, int]] = {}
        self._place: dict[int, tuple[_Key, int]] = {}
        self._closed: dict[_Key, int] = {}
        self._owner: dict[_Key, bytes] = {}

    def put(self, client_id: int, peer: bytes, name: str, secret: bytes = b"") -> None:
        """Note a row that is held; names without a number are ignored.

        ``secret`` opens it: closing a number closes others, so a series has one owner.
        """
        found = numbered(name)
        if found is not None:
            key = (peer, found[0])
            self._ids.setdefault(key, {})[found[1]] = client_id
            self._place[client_id] = (key, found[1])
            self._owner[key] = secret

    def owner(self, peer: bytes, name: str) -> bytes | None:
        """Return the secret of a series of which a row is held, empty if it has none."""
        found = numbered(name)
        return None if found is None else self._owner.get((peer, found[0]))

    def end(self, client_id: int) -> list[int]:
        """Note that a held session ended; the ids of rows that need not be kept now."""
        if client_id not in self._place:
            return []
        key, number = self._place[client_id]
        before = self._closed.get(key)
        if before is not None and number <= before:
            return [client_id] if number < before else []
        self._closed[key] = number
        held = self._ids[key]
        return [held[lower] for lower in sorted(held) if lower < number]

    def forget(self, client_id: int) -> None:
        """Note that a row is held no longer."""
        place = self._place.pop(client_id, None)
        if place is None:
            return
        key, number = place
        held = self._ids[key]
        if held.get(number) == client_id:
            del held[number]
        if not held:
            del self._ids[key]
            self._closed.pop(key, None)
            self._owner.pop(key, None)

    def ended(self, client_id: int) -> bool:
        """Tell whether a held session is at or below the end of its series."""
        place = self._place.get(client_id)
        return place is not None and place[1] <= self._closed.get(place[0], -1)

    def closed(self, peer: bytes, name: str) -> int | None:
        """Return the id that stands for the end of this name, None if it has not ended.

        It is the id of the session up to which the series is closed.
        """
        found = numbered(name)
        if found is None:
            return None
        key = (peer, found[0])
        closed = self._closed.get(key)
        if closed is None or found[1] > closed:
            return None
        return self._ids[key][closed]

    def held(self, peer: bytes, name: str) -> list[int]:
        """Return the ids held of the series that a name is in, none if it is in no series."""
        found = numbered(name)
        return [] if found is None else list(self._ids.get((peer, found[0]), {}).values())

    def below(self, peer: bytes, name: str) -> list[int]:
        """Return the ids held of lower numbers, ascending by number."""
        found = numbered(name)
        if found is None:
            return []
        held = self._ids.get((peer, found[0]), {})
        return [held[number] for number in sorted(held) if number < found[1]]

    def needed(self, client_id: int, is_open: Callable[[int], bool]) -> bool:
        """Tell whether the row marks how far a series is closed that is in use."""
        place = self._place.get(client_id)
        if place is None or self._closed.get(place[0]) != place[1]:
            return False
        return any(is_open(held) for held in self._ids[place[0]].values())
