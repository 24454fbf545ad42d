"""The replica that counts what is the whole store's, also over an older store (DESIGN §9)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rifl._stores.shared.backend import Backend
from rifl._stores.shared.counting_turn import MISSED, CountingTurn
from rifl._stores.shared.requests import GetRows, MoveRows


class Rows:
    """Conditional rows, as a shared store has them."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def ask(self, request: Any) -> Any:
        """Carry out a request."""
        if isinstance(request, GetRows):
            return {key: self.kept[key] for key in request.keys if key in self.kept}
        assert isinstance(request, MoveRows)
        if any(self.kept.get(key) != before for key, before, _ in request.moves):
            return False
        self.kept.update({key: after for key, _, after in request.moves})
        return True


class Replicas:
    """Replicas of one store that look in turn; ``kept``: the store after each look."""

    def __init__(self, owners: str) -> None:
        self.rows = Rows()
        self.living = set(owners)
        self.turns = {
            owner: CountingTurn(owner, cast(Backend, self.rows), lambda: self.living)
            for owner in owners
        }
        self.kept: list[dict[str, bytes]] = [{}]

    def look(self) -> list[str]:
        """Let each look, and count if it has the turn; return which did."""
        counted = []
        for owner, turn in self.turns.items():
            if owner in self.living and turn.mine() and turn.counted():
                counted.append(owner)
            self.kept.append(dict(self.rows.kept))
        return counted


@pytest.mark.parametrize("older", range(13))
def test_over_an_older_store_one_replica_counts_again(older: int) -> None:
    """Whatever state came back: at most one counts in each look, and one does soon (DESIGN §9)."""
    replicas = Replicas("abc")
    for _ in range(2):
        assert replicas.look() == ["a"]
    # A replica that the older store may name.
    replicas.living.remove("a")
    for _ in range(2):
        assert replicas.look() == ["b"]
    replicas.rows.kept = replicas.kept[older]
    looks = [replicas.look() for _ in range(MISSED + 3)]
    assert all(len(each) <= 1 for each in looks), looks
    assert looks[-3] == looks[-2] == looks[-1] == ["b"], looks


def test_a_count_during_which_the_store_became_older_is_not_told() -> None:
    """Another replica may count by then; the next look takes the turn anew (DESIGN §9)."""
    replicas = Replicas("ab")
    for _ in range(3):
        assert replicas.look() == ["a"]
    turn = replicas.turns["a"]
    assert turn.mine()
    replicas.rows.kept = replicas.kept[2]
    assert not turn.counted()
    assert replicas.look() == ["a"]


def test_an_older_store_that_names_a_replica_that_does_not_ask_is_waited_for_no_longer() -> None:
    """It lives, and no observer asks it: another one counts after so many looks (DESIGN §9)."""
    replicas = Replicas("ab")
    assert replicas.look() == ["a"]
    silent = replicas.turns.pop("a")
    while replicas.look() != ["b"]:
        assert len(replicas.kept) < 20
    assert silent.mine() is False
    replicas.rows.kept = replicas.kept[1]
    looks = [replicas.look() for _ in range(MISSED + 2)]
    assert looks[0] == []
    assert looks[-1] == ["b"]
