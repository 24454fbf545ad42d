"""Each rule that is broken on purpose shows in the simulator (DESIGN §3 to §7)."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chaos.sim.run import simulate
from chaos.sim.schedule import draw
from tests.helpers.pages import page


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


_ROW = re.compile(
    r"^\| ([^|]+) \| DESIGN(?:-LOG)? [^|]+ \| `(\w+)` \| (\d+) \|(?: [^|]+ \|)?$", re.MULTILINE
)


def test_the_command_lists_every_broken_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is there once, with its deployment and the seed that shows it."""
    assert _TABLE.main(["--list"]) == 0
    rows = [(name, kind, int(seed)) for name, kind, seed in _ROW.findall(capsys.readouterr().out)]
    assert len({name for name, _, _ in rows}) == len(rows)
    assert rows == [(each.name, each.kind, each.seed) for each in MUTATIONS]
    assert min(seed for _, _, seed in rows) > 0


def test_the_docs_have_the_number_of_broken_rules() -> None:
    """chaos.md has the number of each deployment."""
    docs = page("chaos.md").read_text()
    numbers = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", docs, re.MULTILINE))
    assert numbers == {k: str(n) for k, n in Counter(each.kind for each in MUTATIONS).items()}
