"""``python -m benchmarks.deliver.player LOG BOARD``: a player that is told its targets by lines.

A line is JSON: of each target what ``sharedlog.Target`` takes. It is answered once all of them
are fed. When a message is dispatched is written to the board.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import sharedlog
from benchmarks.deliver.board import Board
from benchmarks.deliver.messages import number_of
from sharedlog._core.envelope import unpack
from sharedlog._core.reading import Committed
from sharedlog._player.main_stream import MainStream

_FED_S = 60.0
# When the board is written: after what is measured.
_LATER_S = 0.003


def _watch(board: Board) -> None:
    dispatch = MainStream._dispatch

    def note(found: list[Committed], now: int) -> None:
        for each in found:
            number = number_of(unpack(each.envelope).body)
            if number >= 0:
                board.dispatched[number] = now

    def dispatched(self: MainStream, found: list[Committed], through: int) -> None:
        if found:
            now = time.monotonic_ns()
            asyncio.get_running_loop().call_later(_LATER_S, note, found, now)
        dispatch(self, found, through)

    MainStream._dispatch = dispatched  # type: ignore[method-assign]


def _targets(line: str) -> list[sharedlog.Target]:
    found = []
    for each in json.loads(line):
        given: dict[str, Any] = dict(each)
        if "patience" in given:
            given["patience"] = timedelta(seconds=given["patience"])
        found.append(sharedlog.Target(**given))
    return found


def _wait(player: sharedlog.Player, targets: list[sharedlog.Target]) -> str:
    """Wait until all are fed; what is wrong otherwise."""
    end = time.monotonic() + _FED_S
    while time.monotonic() < end:
        leading = player._leading
        courses = {} if leading is None else dict(leading.courses)
        fed = [
            each.name
            for each in targets
            if each.name in courses
            and courses[each.name].target == each
            and courses[each.name].feeder.fed
        ]
        if len(fed) == len(targets) == len(courses):
            return "fed"
        time.sleep(0.02)
    return "not fed: " + "; ".join(f"{name} {each.error}" for name, each in courses.items())


def main(log_url: str, board: Board) -> None:
    """Deliver until standard input closes."""
    _watch(board)
    with sharedlog.open(log_url) as log, sharedlog.Player(log, name="bench") as player:
        print("ready", flush=True)
        for line in sys.stdin:
            what, _, told = line.partition(" ")
            targets = _targets(told)
            player.reload(targets)
            print(_wait(player, targets) if what == "fed" else "told", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Board(Path(sys.argv[2])))
