"""Publishers and followers of a log, in the clients' place, and what the log holds in the end."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Self

import sharedlog
from chaos.check import History, check
from chaos.run.clients import Client, Clients
from chaos.run.scenario import Scenario
from chaos.run.shared_log import SharedLog
from chaos.run.streams import STREAMS

__all__ = ["LogClients"]

_END_S, _LOOK_EVERY_S, _PAGE = 60.0, 0.3, 10_000
_AUDITOR = "auditor"


class _Publisher(Client):
    module = "chaos.run.publisher"


class _Follower(Client):
    module = "chaos.run.follower"
    _ANSWERED = b'"event": "read"'


class LogClients(Clients):
    """See ``Clients``. Followers begin first, so that a hold keeps all that is published."""

    _deployment: SharedLog
    _audit: list[dict[str, Any]]

    @classmethod
    def around(cls, scenario: Scenario, seed: int, directory: Path, deployment: SharedLog) -> Self:
        """Build a scenario's processes; nothing runs yet."""
        load, urls = scenario.load, deployment.urls
        common = {"seed": seed, "timeout_s": load.call_timeout_s}
        processes: list[Client] = []
        for number in range(1, scenario.deployment.followers + 1):
            name = f"follower-{number}"
            # The first of each stream have a hold: what is trimmed they have read.
            at, hold = STREAMS[(number - 1) % len(STREAMS)], number <= len(STREAMS)
            given = {"url": urls[name], "name": name, "stream": at, "hold": hold, **common}
            processes.append(_Follower(number, directory, given, "follower"))
        for number in range(1, load.clients + 1):
            given = {
                "url": urls[f"publisher-{number}"],
                "streams": list(STREAMS),
                "callers": load.callers,
                "keys": load.accounts,
                "pause_s": load.pause_ms / 1000,
                **common,
            }
            processes.append(_Publisher(number, directory, given, "publisher"))
        found = cls(processes)
        found._deployment, found._audit = deployment, []
        return found

    @property
    def answered(self) -> int:
        """Appends acknowledged so far."""
        return sum(each.answered for each in self.all if isinstance(each, _Publisher))

    def finish(self) -> list[str]:
        """Let publishers end, then followers, once they, and targets, have all that is there."""
        publishers = Clients([each for each in self.all if isinstance(each, _Publisher)])
        followers = Clients([each for each in self.all if isinstance(each, _Follower)])
        problems = publishers.finish()
        self._audit = list(_audit(self._deployment.url))
        until, pause = time.monotonic() + _END_S, threading.Event()
        consumers, url = self._deployment.consumers, self._deployment.url
        while True:
            wrong = consumers.problems(url)
            if not wrong and not any(each.rule == "end" for each in check(self.read())):
                break
            if time.monotonic() >= until:
                # What is missing the judge says.
                break
            pause.wait(_LOOK_EVERY_S)
        return problems + wrong + followers.finish()

    def read(self) -> History:
        """Return what all of them saw, in order of time, what targets took, and an auditor read."""
        events = [
            json.loads(line)
            for client in self.all
            for line in client.history.read_text().split("\n")[:-1]
        ]
        events.sort(key=lambda event: float(event["at"]))
        return History([*events, *self._deployment.players.taken(), *self._audit])


def _audit(url: str) -> list[dict[str, Any]]:
    """Read what is there, from the first that is kept to the last."""
    with sharedlog.open(url) as log:
        return [
            event
            for stream in log.streams()
            if stream.name in STREAMS
            for substream in range(stream.substreams)
            for event in _audit_one(log, stream.name, substream)
        ]


def _audit_one(log: sharedlog.Log, stream: str, substream: int) -> list[dict[str, Any]]:
    who = f"{_AUDITOR} of {stream}/{substream}"
    while True:
        begun = {"stream": stream, "substreams": [substream], "hold": False, "behind": None}
        events: list[dict[str, Any]] = [{"event": "follow", "follower": who, **begun}]
        after: sharedlog.Position | None = None
        try:
            while messages := log.read(stream, substream, after, _PAGE):
                events += [_read(who, message) for message in messages]
                after = messages[-1].position
        except sharedlog.TrimmedLog:
            # Between two pages; what is kept begins later now.
            continue
        place = None if after is None else [after.lsn, after.ordinal]
        tail = {"event": "tail", "stream": stream, "substream": substream, "place": place}
        return [*events, tail]


def _read(who: str, message: sharedlog.Message) -> dict[str, Any]:
    return {
        "event": "read",
        "follower": who,
        "substream": message.substream,
        "lsn": message.position.lsn,
        "ordinal": message.position.ordinal,
        "message": message.text.partition(" ")[0],
        "key": None if message.key is None else message.key.decode(),
    }
