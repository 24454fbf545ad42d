"""Search the model: ``python -m chaos.model`` (all), ``--broken NAME --trail`` (one)."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from chaos.model import BROKEN, LIVENESS, LONG, SAFETY, Model, Search
from chaos.model.spin import Found

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each search; 0 if the rules hold and each broken one is found."""
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description=__doc__)
    parser.add_argument(
        "--broken", choices=sorted(BROKEN), help="search with this rule broken only"
    )
    parser.add_argument("--trail", action="store_true", help="print the steps to an error")
    parser.add_argument("--jobs", type=int, default=2, help="searches at once (default 2)")
    parser.add_argument("--long", action="store_true", help="also the searches that take minutes")
    given = parser.parse_args(arguments)
    searches: list[tuple[str, Search, bool]] = []
    if given.broken is None:
        searches += [("all rules kept", search, False) for search in SAFETY]
        searches.append(("everybody is answered", LIVENESS, True))
        if given.long:
            searches += [("all rules kept", search, False) for search in LONG]
        searches += [(name, search, False) for name, search in BROKEN.items()]
    else:
        searches.append((given.broken, BROKEN[given.broken], False))
    wrong = 0
    with Model() as model, ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda liveness: model.compile(liveness=liveness), (False, True)))
        results = pool.map(lambda each: model.search(each[1], liveness=each[2]), searches)
        for (name, search, _), found in zip(searches, results, strict=True):
            good = bool(found.error) == bool(search.broken)
            wrong += not good
            print(_line(name, search, found, good), flush=True)
            if given.trail and found.trail:
                print(found.trail)
    return 1 if wrong else 0


def _line(name: str, search: Search, found: Found, good: bool) -> str:
    faults = ", ".join(
        f"{count} {what}"
        for what, count in search._asdict().items()
        if count and what not in ("broken", "registered")
    )
    said = f"found: {found.error}" if found.error else "holds"
    return (
        f"{'ok ' if good else 'BAD'} {name:28} {faults or 'no faults but the change':30} "
        f"{found.states:>9,} states {found.seconds:6.1f} s  {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
