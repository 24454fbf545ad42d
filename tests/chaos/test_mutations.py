"""Each rule that is broken on purpose shows in the simulator (DESIGN §3 to §7)."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.run import simulate
from chaos.sim.schedule import draw


def _load() -> Any:
    # Tests are no package; the table's command is the same file.
    path = Path(__file__).parent / "mutations.py"
    spec = importlib.util.spec_from_file_location("chaos_mutations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_TABLE = _load()
MUTATIONS, SEEDS = list(_TABLE.MUTATIONS), _TABLE.WITHIN
# A schedule of a player, or of a consumer, takes as long as dozens of the others'.
_LONG = ("player", "consumer")
_TESTED = [
    pytest.param(each, id=each.name, marks=pytest.mark.long if each.kind in _LONG else ())
    for each in MUTATIONS
]


@pytest.mark.mutation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", _TESTED)
def test_a_broken_rule_is_found(mutation: Any) -> None:
    """With the rule broken, one of so many seeds, which keep every promise, breaks one."""
    # The seed of the table first; a change that moves it only makes the search longer.
    for seed in (mutation.seed, *range(1, SEEDS + 1)):
        schedule = draw(mutation.kind, seed)
        with mutation.broken():
            found = simulate(schedule).problems
        if found:
            assert simulate(schedule).problems == []
            return
    pytest.fail(f"{SEEDS} seeds of {mutation.kind} keep every promise all the same")


def test_the_table_of_the_docs_is_this_one() -> None:
    """docs/chaos.md names every broken rule, with its deployment and the seed that shows it."""
    docs = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    told = re.findall(
        r"^\| ([^|]+) \| DESIGN(?:-LOG)? [^|]+ \| `(\w+)` \| (\d+) \| [^|]+ \|$", docs, re.MULTILINE
    )
    assert sorted((name, kind, int(seed)) for name, kind, seed in told) == sorted(
        (each.name, each.kind, each.seed) for each in MUTATIONS
    )
