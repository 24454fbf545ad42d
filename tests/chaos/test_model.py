"""The searches of the model are of what they say (make model runs them all)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from chaos.model import BROKEN, SAFETY, Model, Search, SpinMissing


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as compiled:
        yield compiled


def test_every_rule_of_the_model_has_a_number_of_its_own() -> None:
    """A broken rule is one that the model knows, and no two are the same (DESIGN §7)."""
    numbers = [search.broken for search in BROKEN.values()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(search.broken == 0 for search in SAFETY)


@pytest.mark.slow
def test_the_rules_hold_where_nothing_but_the_leader_changes(model: Model) -> None:
    """The whole space of the smallest search has no error, and is not empty (DESIGN §7)."""
    found = model.search(Search())
    assert found.error == ""
    assert found.states > 10_000


@pytest.mark.slow
def test_a_broken_rule_is_found_with_the_way_there(model: Model) -> None:
    """Answers that no witness holds are lost by a leader change (DESIGN §7, invariant 1)."""
    found = model.search(BROKEN["WITNESS_UNASKED"])
    assert "assertion" in found.error
    assert "Client" in found.trail


def test_without_spin_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without spin is told what to install, not shown a traceback of ours."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SpinMissing, match="spin"):
        Model()
