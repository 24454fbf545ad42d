"""The judge of a consumer's work: one run over what was committed."""

from __future__ import annotations

import pytest

from chaos.run.consumed import Effect, following, is_called
from chaos.run.consumers import wrong

_CALLED = next(name for name in map(str, range(100)) if is_called(name))
_QUIET = [name for name in map(str, range(100)) if not is_called(name)][:3]
_MESSAGES = {"orders/0": [_QUIET[0], _CALLED, _QUIET[1]], "invoices/1": [_QUIET[2]]}
_NOTED = [(_CALLED, "7")]


def _effects() -> list[Effect]:
    found: list[Effect] = []
    for tag, names in _MESSAGES.items():
        before = None
        for name in names:
            before = following(tag, before, name, "7" if name == _CALLED else "")
            found.append(before)
    return found


_ALL = _effects()
_OTHER = _ALL[1]._replace(chain="of another run")


@pytest.mark.parametrize(
    ("effects", "copies", "noted", "says"),
    [
        (_ALL, _ALL, _NOTED, ""),
        (None, _ALL, _NOTED, ""),
        (_ALL[:2] + _ALL[3:], _ALL, _NOTED, "orders/0 has 2 of effect, one run has 3"),
        ([*_ALL[:1], *_ALL], _ALL, _NOTED, "effect 2 of orders/0 is"),
        ([_ALL[0], _OTHER, *_ALL[2:]], _ALL, _NOTED, "effect 2 of orders/0 is"),
        (_ALL, _ALL[:3], _NOTED, "invoices/1 has 0 of copy, one run has 1"),
        (_ALL, [*_ALL, _ALL[3]], _NOTED, "invoices/1 has 2 of copy, one run has 1"),
        (_ALL, [_ALL[1], _ALL[0], *_ALL[2:]], _NOTED, "copy 1 of orders/0 is"),
        (None, [_ALL[1], _ALL[0], *_ALL[2:]], _NOTED, "copy 1 of orders/0 is"),
        (_ALL, _ALL, [*_NOTED, (_CALLED, "8")], "was noted 2 times"),
        (_ALL, _ALL, [*_NOTED, (_QUIET[0], "8")], "no caller asks for that"),
        (_ALL, _ALL, [], "effect 2 of orders/0 is"),
    ],
)
def test_what_is_not_one_run_over_the_messages_is_told(
    effects: list[Effect] | None, copies: list[Effect], noted: list[tuple[str, str]], says: str
) -> None:
    """Effects, outputs and calls are there once, in order (DESIGN-LOG §14)."""
    found = list(wrong(_MESSAGES, effects, [copies], noted))
    assert any(says in each for each in found) if says else found == []


def test_effects_of_redis_stand_for_themselves() -> None:
    """None was read before the next, so none says which one was."""
    alone = [following(each.tag, None, each.message, each.answer) for each in _ALL]
    assert list(wrong(_MESSAGES, alone, [alone], _NOTED, chained=False)) == []
    assert list(wrong(_MESSAGES, alone[1:], [alone], _NOTED, chained=False))


def test_what_is_published_says_the_effect() -> None:
    """As the judge reads it."""
    assert [Effect.told(each.text) for each in _ALL] == _ALL
