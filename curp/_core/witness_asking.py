"""The rules of asking one witness: to freeze, to start, and what its answers mean (DESIGN §7).

Each is a generator over one witness: it yields what to ask the witness, and is sent its
reply. ``WitnessUnanswered`` is thrown in if there is none; then it is not known what was done.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from curp._core.witness_table import WitnessMode, WitnessVerdict, judge_serving


class WitnessUnanswered(Exception):
    """The witness did not answer, or refused the caller; the cause says which."""


class Serves(NamedTuple):
    """The group (see ``group_of_log``) and the number that a witness says it serves, and how.

    ``mode``: None where that is one of a later release.
    """

    group: str
    configuration: int
    mode: WitnessMode | None

    def judge(self, group: str, configuration: int) -> WitnessVerdict:
        """Return what it would say to a request of that group and number."""
        held = self.group, self.configuration
        return judge_serving(group, configuration, self.mode, held=held)


class AskFreeze(NamedTuple):
    """Have it accept nothing more under a number: its verdict, and what it holds."""

    configuration: int


class AskStart(NamedTuple):
    """Have it serve a number, empty, or take the secrets only (``refresh``): its verdict."""

    configuration: int
    refresh: bool


class AskStatus(NamedTuple):
    """Ask what it serves: ``Serves``."""


class Frozen(NamedTuple):
    """What became of a freeze. ``held``: what it holds, None if it cannot tell (5)."""

    verdict: WitnessVerdict
    held: list[Any] | None
    serves: Serves | None = None


class Started(NamedTuple):
    """What became of a start. ``serves``: as it said when it was asked, None if it was not."""

    verdict: WitnessVerdict
    serves: Serves | None = None


def freeze_witness(configuration: int) -> Generator[Any, Any, Frozen]:
    """Rule: freeze it under a number."""
    verdict, held = yield AskFreeze(configuration)
    if verdict is WitnessVerdict.ACCEPTED:
        return Frozen(verdict, held)
    # It restarted under that number, or serves another one.
    serves = None
    if verdict is WitnessVerdict.OTHER_CONFIGURATION:
        serves = yield from _looked()
    return Frozen(verdict, None, serves)


def start_witness(group: str, configuration: int, *, refresh: bool) -> Generator[Any, Any, Started]:
    """Rule: start it under a number, or tell it the secrets; it is asked once.

    ``group``: with the log's id.
    """
    serves: Serves | None = None if refresh else (yield AskStatus())
    if serves is not None and serves.group == group and serves.configuration >= configuration:
        # Another leader started it under that number: in a log that went back since. It
        # would take this for that start, asked again, and keep what it holds.
        verdict = WitnessVerdict.OTHER_CONFIGURATION
    else:
        verdict = yield AskStart(configuration, refresh)
        if verdict is WitnessVerdict.OTHER_CONFIGURATION:
            serves = (yield from _looked()) or serves
    return Started(verdict, serves)


def _looked() -> Generator[Any, Any, Serves | None]:
    try:
        serves: Serves = yield AskStatus()
    except WitnessUnanswered:
        return None
    return serves
