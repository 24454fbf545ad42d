"""Search the models: ``python -m chaos.model`` (all), ``--broken NAME --trail`` (one)."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from chaos.model.log_searches import LOG_BROKEN, LOG_LONG, LOG_MODEL, LOG_SAFETY, LogSearch
from chaos.model.searches import BROKEN, LIVENESS, LONG, MODEL, SAFETY, Search
from chaos.model.spin import Found, Model

__all__ = ["main"]


class _Planned(NamedTuple):
    name: str
    search: Search | LogSearch
    liveness: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each search; 0 if the rules hold and each broken one is found."""
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description=__doc__)
    parser.add_argument(
        "--broken",
        choices=sorted({**BROKEN, **LOG_BROKEN}),
        help="search only this",
    )
    parser.add_argument("--trail", action="store_true", help="print the steps to an error")
    parser.add_argument("--jobs", type=int, default=2, help="searches at once (default 2)")
    parser.add_argument("--long", action="store_true", help="also the searches that take minutes")
    given = parser.parse_args(arguments)
    group: list[_Planned] = []
    log: list[_Planned] = []
    if given.broken is None:
        group += [_Planned("all rules kept", search) for search in SAFETY]
        group.append(_Planned("everybody is answered", LIVENESS, liveness=True))
        log += [_Planned("all rules of logs kept", search) for search in LOG_SAFETY]
        if given.long:
            group += [_Planned("all rules kept", search) for search in LONG]
            log += [_Planned("all rules of logs kept", search) for search in LOG_LONG]
    group += [_Planned(*each) for each in BROKEN.items() if given.broken in (None, each[0])]
    log += [_Planned(*each) for each in LOG_BROKEN.items() if given.broken in (None, each[0])]
    wrong = 0
    for path, planned in ((MODEL, group), (LOG_MODEL, log)):
        if planned:
            wrong += _run(path, planned, given.jobs, trail=given.trail)
    return 1 if wrong else 0


def _run(path: Path, planned: list[_Planned], jobs: int, *, trail: bool) -> int:
    """Search one model, and print what is found; how many searches went another way."""
    wrong = 0
    with Model(path) as model, ThreadPoolExecutor(jobs) as pool:
        kinds = {each.liveness for each in planned}
        list(pool.map(lambda liveness: model.compile(liveness=liveness), kinds))
        results = pool.map(lambda each: model.search(each.search, liveness=each.liveness), planned)
        for each, found in zip(planned, results, strict=True):
            good = bool(found.error) == bool(each.search.broken)
            wrong += not good
            print(_line(each.name, each.search, found, good), flush=True)
            if trail and found.trail:
                print(found.trail)
    return wrong


def _line(name: str, search: Search | LogSearch, found: Found, good: bool) -> str:
    faults = ", ".join(
        f"{count} {what}"
        for what, count in search._asdict().items()
        if count and what not in ("broken", "registered", "grouped")
    )
    said = f"found: {found.error}" if found.error else "holds"
    return (
        f"{'ok ' if good else 'BAD'} {name:28} {faults or 'no faults but the change':30} "
        f"{found.states:>9,} states {found.seconds:6.1f} s  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
