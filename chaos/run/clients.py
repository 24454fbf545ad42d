"""The clients of a scenario: processes whose files are followed while they call."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from chaos.check import History
from chaos.run.process import Process
from chaos.run.scenario import Scenario

__all__ = ["Client", "Clients", "Stuck"]

_LOOK_EVERY_S = 0.02
_END_S = 60.0


class Stuck(RuntimeError):
    """Calls do not go on."""


class Client(Process):
    """One client; each start is a new life of it, which goes on in the same file."""

    module = "chaos.run.caller"
    # What counts as answered, in a line of its file.
    _ANSWERED = b'"code": "OK"'

    def __init__(
        self, number: int, directory: Path, given: dict[str, Any], stem: str = "client"
    ) -> None:
        self.history = directory / f"{stem}-{number}.jsonl"
        self.history.touch()
        self._given = {**given, "client": number, "history": str(self.history)}
        self._read = 0
        self._lives = 0
        # Calls that were answered, well.
        self.answered = 0
        super().__init__(f"{stem}-{number}", [], directory)

    def start(self) -> None:
        """Start it; returns when it calls."""
        self._lives += 1
        given = json.dumps({**self._given, "life": self._lives})
        self.command = [sys.executable, "-m", self.module, given]
        super().start()

    def look(self) -> None:
        """Read on in its file."""
        with self.history.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self.answered += self._ANSWERED in line


class Clients:
    """All clients of a run. One thread."""

    def __init__(self, processes: Sequence[Client]) -> None:
        self.all = list(processes)
        # What faults strike, by name.
        self.members: dict[str, Client] = {client.name: client for client in self.all}

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        seed: int,
        directory: Path,
        targets: Sequence[str],
        *,
        follow_leaders: bool,
        forked: Sequence[str] = (),
    ) -> Self:
        """Build a scenario's callers; nothing runs yet."""
        load = scenario.load
        given = {
            "seed": seed,
            "targets": list(targets),
            "follow_leaders": follow_leaders,
            "forked": list(forked),
            "method": scenario.deployment.method,
            "callers": load.callers,
            "accounts": load.accounts,
            "reads": load.reads,
            "keyed": load.keyed,
            "hedge_after_s": load.hedge_after,
            "pause_s": load.pause_ms / 1000,
            "timeout_s": load.call_timeout_s,
        }
        return cls([Client(number, directory, given) for number in range(1, load.clients + 1)])

    @property
    def answered(self) -> int:
        """Calls answered well so far."""
        return sum(client.answered for client in self.all)

    def start(self) -> None:
        """Start them all."""
        for client in self.all:
            client.start()

    def look(self) -> None:
        """Read on in their files."""
        for client in self.all:
            client.look()

    def await_more(self, each: int, timeout_s: float, looking: Callable[[], None]) -> None:
        """Wait until every client got so many more answers; raises ``Stuck``."""
        self.look()
        wanted = {client: client.answered + each for client in self.all}
        until = time.monotonic() + timeout_s
        pause = threading.Event()
        while late := [client for client in self.all if client.answered < wanted[client]]:
            dead = [client for client in late if not client.runs]
            if dead:
                raise Stuck(f"{dead[0].name} ended: {dead[0].complaints()}")
            if time.monotonic() >= until:
                names = ", ".join(client.name for client in late)
                raise Stuck(f"{names}: not {each} answers within {timeout_s:g} s")
            pause.wait(_LOOK_EVERY_S)
            self.look()
            looking()

    def await_silence(self, quiet_s: float, timeout_s: float, looking: Callable[[], None]) -> bool:
        """Wait until no call was answered for so long; return whether that came in time."""
        until = time.monotonic() + timeout_s
        last, since = -1, time.monotonic()
        pause = threading.Event()
        while time.monotonic() < until:
            self.look()
            looking()
            if self.answered != last:
                last, since = self.answered, time.monotonic()
            elif time.monotonic() - since >= quiet_s:
                return True
            pause.wait(_LOOK_EVERY_S)
        return False

    def finish(self) -> list[str]:
        """Let them end; what was wrong with those that did not end well."""
        problems = []
        for client in self.all:
            client.close_input()
        for client in self.all:
            if (code := client.wait(_END_S)) != 0:
                problems.append(f"{client.name} ended with {code}: {client.complaints()}")
        return problems

    def kill(self) -> None:
        """End them, whatever they do."""
        for client in self.all:
            client.kill()

    def read(self) -> History:
        """Return what all of them saw, in order of time."""
        events = []
        for client in self.all:
            for line in client.history.read_text().split("\n")[:-1]:
                event = json.loads(line)
                if event["event"] in ("start", "end"):
                    event["caller"] = client.name
                events.append(event)
        return History(sorted(events, key=lambda event: float(event["at"])))
