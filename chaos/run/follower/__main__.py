"""A follower: ``python -m chaos.run.follower JSON``; the events are ``chaos.check.log_history``'s.

It goes on after each restart by its hold, or behind the last position that it noted itself, which
stands for an effect that is kept with its position. Until standard input closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import sharedlog
from chaos.run.notes import Notes, read_notes

_POLL_S, _AGAIN_S = 0.2, 0.1
# Of batches: those that it says nothing of, and those of which it says that a part is done.
_OF_SILENCE, _OF_PARTS = 0.2, 0.3


class Follower:
    """One follower of one stream; each ``follow`` of it is a session."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._notes = Notes(given["history"])
        self._name: str = given["name"]
        self._dice = random.Random(f"{given['seed']} {self._name} {given['life']}")  # noqa: S311
        self._ending = threading.Event()
        self._ready = False
        # What it has read, whatever its life: by substream, and last.
        self._places: dict[int, str] = {}
        self._last: str | None = None
        for event in read_notes(Path(given["history"])):
            if event["event"] == "read":
                self._places[event["substream"]] = self._last = event["position"]
            elif event["event"] == "refused":
                self._places, self._last = {}, None

    def run(self) -> int:
        """Follow until standard input closes; the exit code."""
        threading.Thread(target=self._listen, daemon=True).start()
        while not self._ending.is_set():
            try:
                patience = timedelta(seconds=self._given["timeout_s"])
                with sharedlog.open(self._given["url"], timeout=patience) as log:
                    self._follow(log)
            except (sharedlog.LogUnavailable, sharedlog.HoldMoved):
                # The log does not answer, or this handle is of no use any more; or a request of its
                # last life arrived after this one began.
                self._ending.wait(_AGAIN_S)
            except sharedlog.LogError as error:
                told = {"code": type(error).__name__, "text": str(error)}
                self._notes.note("refused", follower=self._name, **told)
                if self._given["hold"] or not isinstance(error, sharedlog.TrimmedLog):
                    self._ending.wait()
                self._places, self._last = {}, None
        return 0

    def _listen(self) -> None:
        os.read(0, 1)
        self._ending.set()

    def _follow(self, log: sharedlog.Log) -> None:
        given, hold = self._given, self._given["hold"]
        # A position says where all substreams are; so do those of each.
        places = {at: sharedlog.Position.parse(text) for at, text in self._places.items()}
        after: Any = dict(places) if self._dice.random() < 0.5 else self._last
        following = log.follow(
            given["stream"],
            after=None if hold else after or None,
            name=self._name if hold else None,
        )
        behind = None if hold else {at: [each.lsn, each.ordinal] for at, each in places.items()}
        self._note("follow", stream=given["stream"], substreams=None, hold=hold, behind=behind)
        if not self._ready:
            self._ready = True
            print("following", flush=True)
        try:
            while not self._ending.is_set():
                try:
                    self._take(following)
                except sharedlog.LogStopped:
                    raise
                except sharedlog.LogUnavailable:
                    # It can be used on.
                    continue
        except BaseException:
            with contextlib.suppress(sharedlog.LogError):
                following.close()
            raise
        following.close()
        if hold:
            self._note("closed")

    def _take(self, following: sharedlog.Following) -> None:
        messages = following.poll(_POLL_S)
        for message in messages:
            self._places[message.substream] = self._last = str(message.position)
            key = None if message.key is None else message.key.decode()
            self._note(
                "read",
                substream=message.substream,
                lsn=message.position.lsn,
                ordinal=message.position.ordinal,
                message=message.text.partition(" ")[0],
                key=key,
                position=self._last,
            )
        if not messages or not self._given["hold"] or self._dice.random() < _OF_SILENCE:
            return
        last = self._dice.choice(messages) if self._dice.random() < _OF_PARTS else messages[-1]
        place = last.position
        self._note("done", substream=place.substream, lsn=place.lsn, ordinal=place.ordinal)
        following.done(last)

    def _note(self, event: str, **fields: Any) -> None:
        self._notes.note(event, follower=self._name, **fields)


if __name__ == "__main__":
    _code = Follower(json.loads(sys.argv[1])).run()
    sys.stdout.flush()
    os._exit(_code)
