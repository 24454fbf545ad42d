"""Rules of the design, each broken on purpose, for the simulator to find.

``python tests/chaos/mutations.py --list`` prints the table of them, and without ``--list``
searches from seed 1 for what shows each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.sim.pool import quiet
from chaos.sim.run import simulate
from chaos.sim.schedule import draw
from tests.chaos.broken_rules import RULES, Mutation
from tests.chaos.consumer_mutations import BROKEN as OF_CONSUMERS
from tests.chaos.delivery_mutations import BROKEN as OF_DELIVERIES
from tests.chaos.log_mutations import BROKEN
from tests.chaos.player_mutations import BROKEN as OF_PLAYERS
from tests.chaos.query_mutations import BROKEN as OF_QUERIES

__all__ = ["MUTATIONS", "WITHIN", "Mutation", "seeds_to_find"]

# Each is found in so many seeds of the simulator's default settings, from 1 on.
WITHIN = 150


# The first seed of default settings that shows each. Above ``WITHIN``: what is rare is tried first.
_SEEDS = {
    "id redrawn on retry": 3,
    "answer not kept": 1,
    "running call not known": 1,
    "acknowledged call looks new": 1,
    "dead client served": 8,
    "ids without incarnation": 5,
    "client removed while its call runs": 8,
    "no intent": 18,
    "intents forgotten": 4,
    "record after reply": 53,
    "record given up": 37,
    "record deleted before its acknowledgement is durable": 3,
    "resolution not recorded": 34,
    "closed session reopened": 1,
    "closed session served": 1,
    "late finisher not fenced": 5,
    "acknowledged run commits": 11,
    "commit without a claim overwrites": 8,
    "unclaimed run ends without asking": 3,
    "record without a claim overwrites": 77,
    "what was never claimed did not run": 21,
    "late answer to an acknowledged call": 49,
    "key let go early": 1,
    "a key is not executed because this attempt was not": 1,
    "keys aged by dates": 9,
    "key let go while its call runs": 1,
    "expired means never ran": 165,
    "item's id redrawn on retry": 1,
    "batch recorded in part": 31,
    "intents of a batch in part": 20,
    "lost means never arrived": 3,
    "taken over from the living": 1,
    "unlabelled means not executed": 1,
    "deadline means not executed": 1,
    "expired always sent anew": 7,
    "final without witnesses": 12,
    "witness accepts conflicts": 13,
    "witness not frozen": 24,
    "late start believed": 2,
    "groups told apart by name": 28,
    "number ended before its answers are logged": 10,
    "restarted witness believed": 2,
    "answered before a conflict is logged": 80,
    "answered before its client is logged": 4,
    "other keys on the witnesses believed": 11,
    "waiting answers kept": 7,
    "witness not replayed": 1,
    "recovery in one append": 1,
    "replay not filtered": 1,
    "deaths not counted": 15,
    "who stepped down has died": 7,
    "suspects set aside": 2,
    "versions not logged": 5,
    "a newer leader saves a snapshot": 45,
    "older version goes on": 105,
    "another leader's sync": 12,
    "read lease for ever": 7,
    "read lease without its margin": 197,
    "read lease counted from the reply": 83,
    "lease ended before its reads stop": 16,
    "read of what is not logged": 20,
    "configuration unchecked": 2,
    "a call that skipped its records is answered before its append": 13,
    "witness drops what is not synced": 1,
    "refusal not logged": 29,
    "a call refused by a group may come late": 1,
    "records of other numbers accepted": 177,
    "snapshot without completion records": 3,
    "snapshot without acknowledgements": 30,
    "snapshot while calls run": 27,
    "snapshot of what is not logged": 2,
    "trimmed before it is saved": 19,
    "list changed before its answers are logged": 75,
    "list changed under the same number": 95,
    "batch answered before it is logged": 17,
    "batch answered when its first call is logged": 32,
    "a turn for each call of a batch": 2,
    "another number's writer not refused": 6,
    "torn append recognised": 77,
    "broken stream run again as plain": 3,
    "forgotten record means not executed": 1,
    "one run's word for all": 42,
    "raising means rolled back": 9,
    "half a stream believed": 3,
    "rest of a stream from the wrong place": 3,
    "stream recorded before its last message": 3,
    "long stream kept in part": 193,
    "another run sends all messages": 1,
    "a refused call may come late": 22,
    "granted client unknown": 3,
    "granted before its client is logged": 7,
    "id taken of another store": 7,
    "restored store goes on as it was": 12,
    "restored store grants ids again": 54,
    "copied machines grant one id": 152,
    "forwarded labels believed": 1,
    "session opens by its name": 1,
    "raising means rolled back, of a session's row": 1,
    "raising means rolled back, by one server": 1,
    "session forgotten in use": 15,
}
MUTATIONS = (
    *(each._replace(seed=_SEEDS.get(each.name, 0)) for each in RULES),
    *(Mutation(name, rule, "log", broken, seed) for name, rule, broken, seed in BROKEN),
    *(Mutation(name, rule, "query", broken, seed) for name, rule, broken, seed in OF_QUERIES),
    *(Mutation(name, rule, "player", broken, seed) for name, rule, broken, seed in OF_PLAYERS),
    *(Mutation(name, rule, "consumer", broken, seed) for name, rule, broken, seed in OF_CONSUMERS),
    *(Mutation(name, rule, "player", broken, seed) for name, rule, broken, seed in OF_DELIVERIES),
)


def seeds_to_find(mutation: Mutation, limit: int = WITHIN) -> tuple[int, str] | None:
    """Run default schedules from seed 1 with a rule broken; the first that shows it, and how."""
    with mutation.broken():
        for seed in range(1, limit + 1):
            problems = simulate(draw(mutation.kind, seed)).problems
            if problems:
                return seed, problems[0]
    return None


def _search(number: int, limit: int) -> tuple[int, str] | None:
    return seeds_to_find(MUTATIONS[number], limit)


def _row(mutation: Mutation, *found: object) -> str:
    of_logs = mutation.kind in ("log", "query", "player", "consumer")
    design = "DESIGN-LOG" if of_logs else "DESIGN"
    cells = (mutation.name, f"{design} {mutation.rule}", f"`{mutation.kind}`", *found)
    return "| " + " | ".join(map(str, cells)) + " |"


def main(arguments: list[str] | None = None) -> int:
    """Print the table; of those whose names or deployments are given, if any are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="broken rules, or deployments")
    parser.add_argument(
        "--list", action="store_true", help="print the known seeds, and search none"
    )
    parser.add_argument("--seeds", type=int, default=WITHIN, help="search so many")
    options = parser.parse_args(arguments)
    wanted = [
        number
        for number, mutation in enumerate(MUTATIONS)
        if not options.names or {mutation.name, mutation.kind} & set(options.names)
    ]
    if options.list:
        print("| broken rule | where it stands | deployment | seed that shows it |")
        print("|---|---|---|---|")
        for number in wanted:
            print(_row(MUTATIONS[number], MUTATIONS[number].seed))
        return 0
    print("| broken rule | where it stands | deployment | found by seed | as |")
    print("|---|---|---|---|---|")
    missed = 0
    with multiprocessing.get_context("spawn").Pool(initializer=quiet) as pool:
        searched = [pool.apply_async(_search, (number, options.seeds)) for number in wanted]
        for number, search in zip(wanted, searched, strict=True):
            mutation, found = MUTATIONS[number], search.get()
            seed, how = found if found is not None else ("not found", "")
            rule = how.partition(":")[0]
            if rule.startswith("server"):
                rule = "an invariant"
            missed += found is None
            print(_row(mutation, seed, rule), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
