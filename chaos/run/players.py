"""The players and targets of a log, each a process behind its own path."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sharedlog
from chaos.ports import free_ports
from chaos.run.process import Process
from chaos.run.scenario import Deployed
from chaos.run.streams import STREAMS, SUBSTREAMS
from chaos.run.taken import TAKE, create, told
from chaos.run.toxiproxy import Link, Toxiproxy

__all__ = ["Players"]

_NAME = "chaos"
# How long a target may let a message wait; how long until all of them are held for.
_PATIENCE_S, _HELD_S, _LOOK_EVERY_S = 2.0, 60.0, 0.05


class Players:
    """Processes of one player, which follow all streams, and its targets."""

    def __init__(
        self, deployed: Deployed, directory: Path, proxy: Toxiproxy, urls: Mapping[str, str]
    ) -> None:
        """Build them; nothing runs yet. ``urls``: by a player's process, where the log is."""
        self.links: dict[str, Link] = {}
        self.processes: list[Process] = []
        self._databases: dict[str, Path] = {}
        config = directory / "player.toml"
        lines: list[str] = []
        for number, port in enumerate(free_ports(deployed.targets), 1):
            name = f"target-{number}"
            database = self._databases[name] = directory / f"{name}.db"
            command = [sys.executable, "-m", "chaos.run.target", name, str(database), str(port)]
            self.processes.append(Process(name, command, directory))
            self.links[name] = proxy.link(name, port)
            streams = ", ".join(f'{each} = "{TAKE}"' for each in STREAMS)
            lines += [
                "[[target]]",
                f'name = "{name}"',
                f'address = "{self.links[name].address}"',
                f"streams = {{ {streams} }}",
                f"patience = {_PATIENCE_S}",
            ]
        if deployed.targets:
            config.write_text("\n".join(lines) + "\n")
        for number in range(1, deployed.players + 1):
            name = f"player-{number}"
            command = [sys.executable, "-m", "sharedlog", "play", "--log", urls[name]]
            command += ["--name", _NAME, "--config", str(config)]
            self.processes.append(Process(name, command, directory))

    def prepare(self) -> None:
        """Make the targets' tables."""
        for database in self._databases.values():
            create(database)

    def await_holds(self, url: str) -> None:
        """Wait until nothing is trimmed that a target has yet to take."""
        wanted = len(self._databases) * len(STREAMS) * SUBSTREAMS
        if not wanted:
            return
        until, pause = time.monotonic() + _HELD_S, threading.Event()
        with sharedlog.open(url) as log:
            while sum(each.name.startswith(f"@player:{_NAME}:") for each in log.holds()) < wanted:
                if time.monotonic() >= until:
                    raise TimeoutError(f"no player holds the log for its targets in {_HELD_S} s")
                pause.wait(_LOOK_EVERY_S)

    def taken(self) -> Iterator[dict[str, Any]]:
        """Yield what the targets took, as events of a history."""
        for name, database in self._databases.items():
            yield from told(name, database)
