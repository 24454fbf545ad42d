"""Notes of who replays which entries, by which the deadly one is found (DESIGN §7: 12)."""

from __future__ import annotations

from typing import NamedTuple

# A stretch in which a process died is replayed in so many pieces the next time.
_PIECES = 256


class Stretch(NamedTuple):
    """Entries behind ``after``, up to ``through``, and how many processes died in them."""

    after: int
    through: int
    deaths: int = 0

    @property
    def single(self) -> bool:
        """Whether it is one entry."""
        return self.through - self.after == 1


class ReplayNote(NamedTuple):
    """What a process of a replica replays now."""

    replica: str
    process: str
    after: int
    through: int


class ReplayNotes(NamedTuple):
    """Which replica replays what of a log, and where a process died; never changed in place.

    A replica that begins to follow notes the stretch in front of it, and takes the note away when
    it has caught up; nothing is noted after that. A note of an earlier process of the
    same replica says that it died there. Each time the stretch is replayed in smaller
    pieces, each with a note, by every replica, until it is one entry.
    """

    notes: tuple[ReplayNote, ...] = ()
    suspect: Stretch | None = None

    def died(self, replica: str, process: str) -> tuple[ReplayNotes, Stretch | None]:
        """Note that this process begins; return where its predecessor died, None if nowhere."""
        note = next((each for each in self.notes if each.replica == replica), None)
        if note is None or note.process == process:
            return self, None
        deaths = 1
        if self.suspect is not None and _within(note, self.suspect):
            deaths += self.suspect.deaths
        stretch = Stretch(note.after, note.through, deaths)
        return self.without(replica)._replace(suspect=stretch), stretch

    def stop(self, applied: int, tail: int) -> int:
        """Return through which entry the next note is to go."""
        suspect = self.suspect
        if suspect is None or applied >= suspect.through or tail <= suspect.after:
            return tail
        if applied < suspect.after:
            return suspect.after
        piece = -(-(suspect.through - suspect.after) // _PIECES)
        return min(applied + piece, suspect.through, tail)

    def noted(self, note: ReplayNote) -> ReplayNotes:
        """Note that a process replays a stretch; entries before it killed no process."""
        left = self.without(note.replica)
        if left.suspect is not None and note.after >= left.suspect.through:
            left = left._replace(suspect=None)
        return left._replace(notes=(*left.notes, note))

    def without(self, replica: str) -> ReplayNotes:
        """Note that a replica replays nothing."""
        return self._replace(notes=tuple(each for each in self.notes if each.replica != replica))

    def caught_up(self, replica: str, applied: int) -> ReplayNotes:
        """Note that a replica has replayed everything up to an entry."""
        left = self.without(replica)
        passed = left.suspect is not None and applied >= left.suspect.through
        return left._replace(suspect=None) if passed else left


def _within(note: ReplayNote, stretch: Stretch) -> bool:
    return stretch.after <= note.after and note.through <= stretch.through
