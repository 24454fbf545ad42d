"""Search the models: ``python -m chaos.model`` (all), ``--broken NAME --trail`` (one)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from chaos.model.log_searches import LOG_BROKEN, LOG_LONG, LOG_MODEL, LOG_SAFETY
from chaos.model.player_searches import (
    PLAYER_BROKEN,
    PLAYER_LIVENESS,
    PLAYER_LIVENESS_LONG,
    PLAYER_LONG,
    PLAYER_MODEL,
    PLAYER_SAFETY,
)
from chaos.model.searches import BROKEN, LIVENESS, LONG, MODEL, SAFETY, AnySearch
from chaos.model.spin import Found, Model

__all__ = ["main"]


_LONGEST_S = 1800.0


class _Planned(NamedTuple):
    name: str
    search: AnySearch
    liveness: bool = False


class _Searches(NamedTuple):
    """What is searched of one model: with all rules kept, and with one broken."""

    model: Path
    kept: tuple[_Planned, ...]
    long: tuple[_Planned, ...]
    broken: Mapping[str, AnySearch]

    def plan(self, only: str | None, *, long: bool) -> list[_Planned]:
        broken = [_Planned(*each) for each in self.broken.items() if only in (None, each[0])]
        if only is not None:
            return broken
        return [*self.kept, *(self.long if long else ()), *broken]


def _kept(
    name: str,
    safety: tuple[AnySearch, ...],
    lively: str = "",
    liveness: tuple[AnySearch, ...] = (),
) -> tuple[_Planned, ...]:
    return (
        *(_Planned(name, each) for each in safety),
        *(_Planned(lively, each, liveness=True) for each in liveness),
    )


_GROUPS, _LOGS, _PLAYERS = (f"all rules{each} kept" for each in ("", " of logs", " of players"))
_DELIVERED = "all is delivered"
_ALL = (
    _Searches(
        MODEL,
        _kept(_GROUPS, SAFETY, "everybody is answered", (LIVENESS,)),
        _kept(_GROUPS, LONG),
        BROKEN,
    ),
    _Searches(LOG_MODEL, _kept(_LOGS, LOG_SAFETY), _kept(_LOGS, LOG_LONG), LOG_BROKEN),
    _Searches(
        PLAYER_MODEL,
        _kept(_PLAYERS, PLAYER_SAFETY, _DELIVERED, PLAYER_LIVENESS),
        _kept(_PLAYERS, PLAYER_LONG, _DELIVERED, PLAYER_LIVENESS_LONG),
        PLAYER_BROKEN,
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each search; 0 if the rules hold and each broken one is found."""
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description=__doc__)
    parser.add_argument(
        "--broken",
        choices=sorted(name for each in _ALL for name in each.broken),
        help="search only this",
    )
    parser.add_argument("--trail", action="store_true", help="print the steps to an error")
    parser.add_argument("--jobs", type=int, default=2, help="searches at once (default 2)")
    parser.add_argument("--long", action="store_true", help="also the searches that take minutes")
    given = parser.parse_args(arguments)
    wrong = 0
    for each in _ALL:
        planned = each.plan(given.broken, long=given.long)
        if planned:
            wrong += _run(each.model, planned, given.jobs, trail=given.trail)
    return 1 if wrong else 0


def _run(path: Path, planned: list[_Planned], jobs: int, *, trail: bool) -> int:
    """Search one model, and print what is found; how many searches went another way."""
    wrong = 0
    with Model(path) as model, ThreadPoolExecutor(jobs) as pool:
        kinds = {each.liveness for each in planned}
        list(pool.map(lambda liveness: model.compile(liveness=liveness), kinds))
        results = pool.map(
            lambda each: model.search(each.search, liveness=each.liveness, timeout_s=_LONGEST_S),
            planned,
        )
        for each, found in zip(planned, results, strict=True):
            good = bool(found.error) == bool(each.search.broken)
            wrong += not good
            print(_line(each.name, each.search, found, good), flush=True)
            if trail and found.trail:
                print(found.trail)
    return wrong


def _line(name: str, search: AnySearch, found: Found, good: bool) -> str:
    faults = ", ".join(
        f"{count} {what}"
        for what, count in ((name.lower(), int(value)) for name, value in search.settings().items())
        if count and what not in ("broken", "registered", "grouped")
    )
    said = f"found: {found.error}" if found.error else "holds"
    return (
        f"{'ok ' if good else 'BAD'} {name:28} {faults or 'no faults but the change':30} "
        f"{found.states:>9,} states {found.seconds:6.1f} s  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
