"""The overview of a player's targets: how they are, and how they were lately (DESIGN-LOG §15).

It is what the status page shows. It is read from the log, so that each of several players of one
name has the same one, and it says nothing of messages but where they stand.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from _rifl_ground.log import get_logger
from _rifl_ground.texts import one_line
from sharedlog._core.errors import LogError
from sharedlog._core.player.headline import headline
from sharedlog._core.player.rows import TargetState, Wish, all_told, wishes
from sharedlog._core.position import Position
from sharedlog._log.place import Place

_log = get_logger("sharedlog")
# How often the log is asked, and how many samples of lags are kept.
EVERY_S = 2.0
_SAMPLES = 300
# Of a text that a target, or an operator, wrote.
_MOST_CHARS = 500


class Overview:
    """Looks in a thread of its own, until it is closed."""

    def __init__(
        self,
        place: Place,
        player: str,
        leads: Callable[[], bool],
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``leads``: whether it is this process's player that sends."""
        self._place = place
        self._player = player
        self._leads = leads
        self._every_s = every_s
        self._clock = clock
        self._seen: tuple[Mapping[str, TargetState], Mapping[str, Wish]] = ({}, {})
        self._seen_s = 0.0
        self._error = "nothing was read yet"
        self._samples: dict[str, deque[tuple[int, int, float]]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on."""
        self._thread = threading.Thread(target=self._run, name="sharedlog-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:  # noqa: BLE001 - a bug: the page says how old its data is
                _log.exception("player_status_failed", player=self._player)
            self._closing.wait(self._every_s)

    def look(self) -> None:
        """Ask the log how the targets are."""
        try:
            seen = (
                self._place.run(all_told(self._player)),
                self._place.run(wishes(self._player)),
            )
        except LogError as error:
            with self._lock:
                self._error = f"{type(error).__name__}: {error}"
            return
        now_s = self._clock()
        with self._lock:
            self._seen, self._seen_s, self._error = seen, now_s, ""
            told = seen[0]
            for gone in self._samples.keys() - told.keys():
                del self._samples[gone]
            for name, each in told.items():
                kept = self._samples.setdefault(name, deque(maxlen=_SAMPLES))
                kept.append((int(now_s * 1000), each.lag, each.rate))

    def shown(self) -> dict[str, Any]:
        """Return what is known, as JSON has it. Any thread."""
        with self._lock:
            told, wished = self._seen
            now_us = int(self._clock() * 1_000_000)
            found = [
                _target(
                    name,
                    told.get(name),
                    wished.get(name, Wish()),
                    self._samples.get(name, ()),
                    now_us,
                )
                for name in sorted(told.keys() | wished.keys())
            ]
            return {
                "player": self._player,
                "leads": self._leads(),
                "now_ms": now_us // 1000,
                "read_ms": int(self._seen_s * 1000),
                "every_ms": int(self._every_s * 1000),
                "error": one_line(self._error, _MOST_CHARS),
                "targets": found,
            }


def _target(
    name: str, told: TargetState | None, wished: Wish, samples: Any, now_us: int
) -> dict[str, Any]:
    paused = wished.paused
    level, word, text = headline(told, wished, now_us)
    found: dict[str, Any] = {
        "name": name,
        "headline": {
            "level": level.value,
            "word": one_line(word, _MOST_CHARS),
            "text": one_line(text, _MOST_CHARS),
        },
        "paused": None
        if paused is None
        else {
            "by": one_line(paused.by, _MOST_CHARS),
            "why": one_line(paused.why, _MOST_CHARS),
            "at_ms": paused.at_us // 1000,
        },
        "samples": list(samples),
    }
    if told is None:
        return found | {"state": None}
    places = [Position.parse(each) for each in told.indexes.values()]
    return found | {
        "state": told.state,
        "address": told.address,
        "number": told.number,
        "why": told.why,
        "details": one_line(told.details, _MOST_CHARS),
        "about": told.about,
        "substream": told.about_tag,
        "index": min((each.lsn for each in places), default=None),
        "substreams": len(places),
        "lag": told.lag,
        "rate": told.rate,
        "queued": told.queued,
        "in_flight": told.in_flight,
        "taken": told.taken,
        "dead_letters": told.dead_letters,
        "error": one_line(told.error, _MOST_CHARS),
        "error_ms": told.error_at_us // 1000,
        "told_ms": told.at_us // 1000,
        "attempts": [
            [tag, place.partition("-")[0], count]
            for tag, (place, count) in sorted(told.attempts.items())
        ],
        "process": told.process,
    }
