"""The judge of what a player's targets took: the rules of a log's readers."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from chaos.check import History, check
from chaos.run.taken import INSERT, create, told

_Row = tuple[str, int, int, int, str, str]
# Two substreams, of which each has its own order.
_ALL: list[_Row] = [
    ("orders", 0, 2, 0, "a", "k"),
    ("orders", 1, 5, 0, "c", "l"),
    ("orders", 0, 2, 1, "b", "k"),
    ("orders", 1, 4, 0, "d", "l"),
    ("orders", 0, 7, 0, "e", "k"),
]
_GOOD = [_ALL[0], _ALL[3], _ALL[2], _ALL[1], _ALL[4]]


def _broken(path: Path, rows: list[_Row]) -> set[str]:
    """Return the rules that a target broke, beside one that took everything."""
    events = []
    for name, taken in (("target-1", _GOOD), ("target-2", rows)):
        database = path / f"{name}.db"
        create(database)
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.executemany(INSERT, taken)
        events += told(name, database)
    for number, place in ((0, [7, 0]), (1, [5, 0]), (2, None), (3, None)):
        events.append({"event": "tail", "stream": "orders", "substream": number, "place": place})
    messages = [[name, stream, key] for stream, _, _, _, name, key in _GOOD]
    begun = {"event": "start", "at": 0.0, "call": 1, "op": "publish", "caller": "p"}
    starts = [{**begun, "call": at, "messages": [each]} for at, each in enumerate(messages)]
    found = check(History([*starts, *events]))
    return {each.rule for each in found if each.rule not in ("torn", "order")}


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        (_GOOD, set()),
        (_GOOD[1:], {"resumed"}),
        (_GOOD[:-1], {"end"}),
        ([*_GOOD[:2], *_GOOD[3:]], {"read"}),
        ([_GOOD[0], *_GOOD], {"read"}),
        ([_GOOD[2], *_GOOD[:2], *_GOOD[3:]], {"read", "resumed"}),
        ([*_GOOD, ("orders", 0, 7, 0, "other", "k")], {"answers", "labels", "read"}),
    ],
)
def test_what_a_target_misses_or_takes_twice_or_out_of_order_is_told(
    rows: list[_Row], rules: set[str], tmp_path: Path
) -> None:
    """A target takes each substream in its order, each message once (DESIGN-LOG §15, P1)."""
    assert _broken(tmp_path, rows) == rules
