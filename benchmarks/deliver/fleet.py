"""A fleet: a log, its player, and targets, each a process of its own; and who stands beside it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import sharedlog
from benchmarks.deliver.board import Board
from benchmarks.deliver.messages import EVERYBODY, KEYS, TOKEN, stream_of
from benchmarks.deliver.worker import Worker

__all__ = ["Fleet", "Rivals"]


class Fleet:
    """A log in a SQLite file, a player, and so many targets. A context manager; one thread."""

    def __init__(self, folder: Path, targets: int) -> None:
        """Start all; the player feeds no target yet."""
        folder.mkdir()
        self.folder = folder
        self._stack = ExitStack()
        self.board = Board(folder / "board")
        self.numbers = itertools.count(0, KEYS)
        url = f"sqlite:///{folder}/log.db"
        try:
            self.log = self._stack.enter_context(sharedlog.create(url))
            for target in range(targets):
                self.log.stream(stream_of(target), 1)
            self.log.stream(EVERYBODY)
            board = str(folder / "board")
            self.targets = [
                self._stack.enter_context(
                    Worker(
                        "target",
                        str(target),
                        str(folder / f"target{target}.db"),
                        board,
                        stream_of(target),
                        EVERYBODY,
                    )
                )
                for target in range(targets)
            ]
            self.player = self._stack.enter_context(Worker("player", url, board))
            ports = [each.ready.split() for each in self.targets]
            _ = self.player.ready
        except BaseException:
            self._stack.close()
            raise
        self._declared: list[dict[str, Any]] = []
        self.ports = [port for port, _ in ports]
        self.bare_ports = [port for _, port in ports]

    def declared(self, target: int, *, everybody: bool = False, **given: Any) -> dict[str, Any]:
        """Return a target as the player is told it; it follows its own stream, or everybody's."""
        return {
            "name": f"target{target}",
            "address": f"127.0.0.1:{self.ports[target]}",
            "token": TOKEN,
            "streams": [EVERYBODY if everybody else stream_of(target)],
            **given,
        }

    def play(self, targets: Sequence[dict[str, Any]]) -> None:
        """Have the player feed these, and no others, and wait until it does."""
        self._declared = list(targets)
        self.fed()

    def fed(self) -> None:
        """Wait until all are fed that were declared last."""
        found = self.player.ask(f"fed {json.dumps(self._declared)}")
        if found != "fed":
            raise RuntimeError(found)

    def declare(self, targets: Sequence[dict[str, Any]]) -> None:
        """Have the player feed these, and no others, as soon as it can."""
        self._declared = list(targets)
        self.player.ask(f"told {json.dumps(self._declared)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self._stack.close()


class Rivals:
    """The targets of another system: consumers, started when they are first asked for."""

    def __init__(self, kind: str, where: str, folder: Path) -> None:
        """``kind``: see ``consumer``. ``where``: its server."""
        self._kind = kind
        self._where = where
        self._folder = folder / kind
        self._folder.mkdir()
        self._stack = ExitStack()
        self.board = Board(self._folder / "board")
        self.numbers = itertools.count(0, KEYS)
        self._count = 0

    def enough(self, targets: int) -> None:
        """Have so many of them."""
        fresh = [self._started(number) for number in range(self._count, targets)]
        self._count = max(self._count, targets)
        for each in fresh:
            _ = each.ready

    def _started(self, number: int) -> Worker:
        file = self._folder / f"target{number}.db"
        return self._stack.enter_context(
            Worker(
                "consumer",
                self._kind,
                self._where,
                str(number),
                str(file),
                str(self._folder / "board"),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self._stack.close()
