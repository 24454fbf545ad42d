"""Findings of a look at a store or log before a server is started over it, and how they are told.

The checks themselves are those of the start: see ``doctor`` beside each kind of store and log.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from _rifl_ground.exits import ExitCode, failed, unread
from _rifl_ground.servers import Durability, Weakness
from _rifl_ground.texts import printable

_T = TypeVar("_T")
# Above this, what is kept for a time by one machine's clock ends too early by another's.
MOST_SKEW_S = 5.0


class Grade(enum.Enum):
    """How bad a finding is, the least first."""

    NOTE = "note"
    # A server starts, with less than it could have.
    WARNING = "warning"
    # There is no log yet: only ``create`` makes one.
    MISSING = "missing"
    # A server does not start.
    ERROR = "error"
    # Nothing more could be looked at.
    UNREACHABLE = "unreachable"


CODES = {
    Grade.NOTE: ExitCode.DONE,
    Grade.WARNING: ExitCode.DEGRADED,
    Grade.MISSING: ExitCode.NOT_FOUND,
    Grade.ERROR: ExitCode.REFUSED,
    Grade.UNREACHABLE: ExitCode.UNAVAILABLE,
}
_GRADES = list(Grade)


class Finding(NamedTuple):
    """One thing that was found. ``about``: a word; ``do``: empty if there is nothing to do."""

    grade: Grade
    about: str
    found: str
    do: str


class Checkup:
    """Collects findings about one place, whose name has no credentials. One thread.

    ``refusals``: the errors by which a check says that a start is refused; ``absent``: the one of
    them by which it says that there is nothing yet, which is no server's to make.
    """

    def __init__(
        self, place: str, refusals: type[Exception], absent: type[Exception] | None = None
    ) -> None:
        self.place = place
        self.findings: list[Finding] = []
        self._refusals = refusals
        self._absent = absent

    def note(self, about: str, found: str) -> None:
        """Note what an operator may want to know."""
        self._add(Grade.NOTE, about, found, "")

    def warning(self, about: str, found: str, do: str) -> None:
        """Note what is weak."""
        self._add(Grade.WARNING, about, found, do)

    def error(self, about: str, found: str, do: str) -> None:
        """Note what a start would be refused for."""
        self._add(Grade.ERROR, about, found, do)

    def unreachable(self, found: str, do: str) -> None:
        """Note why nothing more could be looked at."""
        self._add(Grade.UNREACHABLE, "connection", found, do)

    def refused(self, about: str, check: Callable[[], _T], do: str = "") -> _T | None:
        """Make a check of the start; None if it refuses, which is noted.

        ``do``: by default what the refusal's class says.
        """
        try:
            return check()
        except self._refusals as error:
            absent = self._absent is not None and isinstance(error, self._absent)
            grade = Grade.MISSING if absent else Grade.ERROR
            self._add(grade, about, str(error), do or what_to_do(type(error)))
            return None

    def weaknesses(self, found: Sequence[Weakness], durability: Durability) -> None:
        """Note weak settings: refused, unless the URL says ``durability=warn``."""
        refused = durability is Durability.REQUIRE
        for setting, cost in found:
            do = "Correct it"
            if refused:
                do += ", or give durability=warn, which opens it all the same"
            self._add(
                Grade.ERROR if refused else Grade.WARNING,
                "settings",
                f"{setting}: {cost}",
                f"{do}.",
            )

    def clock(self, server_s: Callable[[], float]) -> None:
        """Compare this machine's clock with the server's, which ``server_s`` asks for."""
        before_s = time.time()
        found_s = server_s()
        after_s = time.time()
        # What the question took is no difference.
        apart_s = max(found_s - after_s, before_s - found_s)
        if apart_s > MOST_SKEW_S:
            self.warning(
                "clock",
                f"the server's clock and this machine's are {apart_s:.0f} s apart: times in "
                "events and lists are wrong by that, and what is kept for a time ends too early "
                "or too late",
                "Have both machines follow one source of time (NTP).",
            )

    def connections(self, wanted: int, free: int, of: str) -> None:
        """Compare what one process may open with what the server has left; ``of``: its limit."""
        if free < wanted:
            self.warning(
                "connections",
                f"{max(0, free)} of the server's connections are free ({of}), and a process may "
                f"open {wanted}: calls that get none are refused",
                "Raise the server's limit, or lower max_connections in the URL.",
            )

    def _add(self, grade: Grade, about: str, found: str, do: str) -> None:
        finding = Finding(grade, about, " ".join(found.split()), do)
        # Of several servers of a cluster.
        if finding not in self.findings:
            self.findings.append(finding)

    @property
    def failed(self) -> bool:
        """Whether a start would be refused, as far as was looked."""
        return any(each.grade in (Grade.ERROR, Grade.UNREACHABLE) for each in self.findings)

    @property
    def worst(self) -> Grade:
        """The grade that the exit code tells."""
        return max((each.grade for each in self.findings), key=_GRADES.index, default=Grade.NOTE)


def what_to_do(error: type[BaseException]) -> str:
    """Return what the last paragraph of an error's docstring says."""
    text = inspect.getdoc(error) or ""
    return " ".join(text.split("\n\n")[-1].replace("``", "").split())


@contextlib.contextmanager
def reached(checkup: Checkup, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """End the look within at one of these errors, and note it."""
    try:
        yield
    except errors as error:
        checkup.unreachable(
            f"{checkup.place} does not answer as it should: {str(error) or type(error).__name__}",
            "Look at the URL, the network and the server, then look again.",
        )


def tell(checkup: Checkup, *, as_json: bool) -> ExitCode:
    """Print what was found, the worst first; return the exit code, also if it is not read."""
    found = sorted(checkup.findings, key=lambda each: -_GRADES.index(each.grade))
    worst = checkup.worst
    if as_json:
        told = [{**each._asdict(), "grade": each.grade.value} for each in found]
        text = json.dumps({"place": checkup.place, "worst": worst.value, "findings": told}) + "\n"
    else:
        text = "".join(map(_lines, found))
        if worst is Grade.NOTE:
            text += f"{printable(checkup.place)}: nothing would be refused, and nothing is weak\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        unread()
    return CODES[worst]


def failed_look(program: str, error: Exception, code: ExitCode = ExitCode.UNAVAILABLE) -> ExitCode:
    """Do what ``failed`` does, for a doctor's ``--json``: standard output has its object, too."""
    checkup = Checkup("", Exception)
    checkup.error("command", str(error) or type(error).__name__, "Correct it, then look again.")
    tell(checkup, as_json=True)
    return failed(program, error, code)


def _lines(finding: Finding) -> str:
    lines = [f"{finding.grade.value}: {finding.about}: {printable(finding.found)}"]
    if finding.do:
        lines.append(f"    do: {printable(finding.do)}")
    return "\n".join(lines) + "\n"
