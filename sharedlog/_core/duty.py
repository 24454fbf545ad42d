"""A duty: what one of a log's processes does at a time, by a fence (DESIGN-LOG §12, L4).

No clock is trusted. The process that has the duty renews a *beat* that is never the same twice. A
process that sees one beat for a time that it measures itself takes over, which raises the fence:
what its predecessor does under the old number is refused from then on, also when it was only
stopped, and comes back.
"""

from __future__ import annotations

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.fences import Fence, fence_key, number_of
from sharedlog._core.steps import Get, Rule

WHO_BYTES = 8


class Duty:
    """One process's part in it. ``who``: 8 random bytes. Fences are named as no user's can be.

    ``patience_s``: how long a beat may stay the same; several times what passes between two
    calls of ``take``.
    """

    def __init__(self, name: str, who: bytes, patience_s: float) -> None:
        """At first another process has it, or none."""
        if len(who) != WHO_BYTES:
            raise ValueError(f"{WHO_BYTES} bytes tell who it is, not {len(who)}")
        self._fence = f"*{name}"
        self._beat = f"duty/{name}"
        self._who = who
        self._patience_s = patience_s
        # What another one's fence and beat were, and when that was seen first.
        self._seen: tuple[int, bytes] | None = None
        self._seen_s = 0.0
        # Whether another one's beat was seen to change since this one last had the duty.
        self.other_beats = False

    def take(self, now_s: float) -> Rule[Fence | None]:
        """Return the fence to act under, for the one that has the duty; None: another one has.

        ``now_s``: by a clock of this process that does not jump. Run again after a lost reply it
        finds what it took.
        """
        key = fence_key(self._fence)
        while True:
            found = yield Get((key, self._beat))
            number, beat = number_of(found[key]), found[self._beat]
            mine = self._mine(beat)
            if beat is not None and not mine and not self._silent((number, beat), now_s):
                return None
            fence = Fence(self._fence, number if mine else number + 1)
            count = 1 + int.from_bytes((beat or b"")[WHO_BYTES:], "big")
            try:
                yield Commit(
                    (Condition(key, found[key]), Condition(self._beat, beat)),
                    (
                        Put(key, fence.number.to_bytes(8, "big")),
                        Put(self._beat, self._who + count.to_bytes(8, "big")),
                    ),
                )
            except Refused:
                continue
            self._seen, self.other_beats = None, False
            return fence

    def leave(self) -> Rule[None]:
        """Let another one take over at once, if it is this one's."""
        key = fence_key(self._fence)
        found = yield Get((key, self._beat))
        if not self._mine(found[self._beat]):
            return
        try:
            yield Commit(
                tuple(Condition(each, value) for each, value in found.items()),
                (Put(self._beat, None),),
            )
        except Refused:
            return

    def _mine(self, beat: bytes | None) -> bool:
        return beat is not None and beat.startswith(self._who)

    def _silent(self, seen: tuple[int, bytes], now_s: float) -> bool:
        if self._seen != seen:
            self.other_beats = self._seen is not None
            self._seen, self._seen_s = seen, now_s
        return now_s - self._seen_s >= self._patience_s
