"""The searches of the model are of what they say.

``make model`` runs them all, and CI that; here the long ones are left to ``make test-long``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from chaos.model import (
    BROKEN,
    LOG_BROKEN,
    LOG_MODEL,
    LOG_SAFETY,
    PLAYER_BROKEN,
    PLAYER_LIVENESS,
    PLAYER_MODEL,
    PLAYER_SAFETY,
    SAFETY,
    Model,
    Search,
)
from chaos.programs import NotInstalled


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as compiled:
        yield compiled


def test_every_rule_of_the_model_has_a_number_of_its_own() -> None:
    """A broken rule is one that its model knows; no two are the same (DESIGN §7)."""
    for broken, safety in (
        (BROKEN, SAFETY),
        (LOG_BROKEN, LOG_SAFETY),
        (PLAYER_BROKEN, PLAYER_SAFETY),
    ):
        numbers = [search.broken for search in broken.values()]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        assert all(search.broken == 0 for search in safety)


@pytest.mark.long
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


@pytest.mark.slow
def test_the_rules_of_a_log_hold_and_each_broken_one_is_found() -> None:
    """Transactions are whole, decided once, and nothing stays open (DESIGN-LOG §13, C1, C2)."""
    with Model(LOG_MODEL) as model:
        kept = [model.search(search) for search in LOG_SAFETY[:2]]
        assert [found.error for found in kept] == ["", ""]
        assert all(found.states > 1000 for found in kept)
        for name, search in LOG_BROKEN.items():
            assert "assertion" in model.search(search).error, name


@pytest.mark.long
def test_the_rules_of_a_player_hold_and_each_broken_one_is_found() -> None:
    """Delivered in order, once, and in the end; P1, P3, P4 and P5 are needed (DESIGN-LOG §15)."""
    with Model(PLAYER_MODEL) as model:
        kept = [
            model.search(PLAYER_SAFETY[1]),
            model.search(PLAYER_LIVENESS[0], liveness=True),
        ]
        assert [found.error for found in kept] == ["", ""]
        assert all(found.states > 1000 for found in kept)
        for name, search in PLAYER_BROKEN.items():
            assert "assertion" in model.search(search).error, name


def test_without_spin_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the target that installs spin."""
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    with pytest.raises(NotInstalled, match="spin"):
        Model()
