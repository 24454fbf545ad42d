"""A consumer's process: ``python -m chaos.run.consumer URL STORE LEDGER``.

Of each message there is an effect in the store, an output, and of some a call of the ledger. Until
standard input closes; where the log does not answer at first it is asked again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any

import sharedlog
from chaos.run.consumed import COPIES, NAME, NOTE, Effect, following, is_called
from chaos.run.streams import STREAMS

_STORED = "chaos:effects:"
_PAUSE_S = 0.2


class _Tables:
    """Effects in a table of the user's."""

    def __init__(self, place: str) -> None:
        self._last = (
            "SELECT number, message, chain, answer FROM effect WHERE tag = ? "
            "ORDER BY number DESC LIMIT 1"
        ).replace("?", place)
        self._insert = "INSERT INTO effect VALUES (?, ?, ?, ?, ?)".replace("?", place)

    def before(self, effects: Any, tag: str) -> Effect | None:
        row = effects.connection.execute(self._last, (tag,)).fetchone()
        return None if row is None else Effect(tag, *row)

    def write(self, effects: Any, found: Effect) -> None:
        effects.connection.execute(self._insert, found)


class _Lists:
    """Effects in lists of Redis, which are not read."""

    def before(self, effects: Any, tag: str) -> Effect | None:
        del effects, tag
        return None

    def write(self, effects: Any, found: Effect) -> None:
        effects.connection.rpush(_STORED + found.tag, json.dumps(found))


class _State:
    """The last effect of a substream in the state that the log has of it."""

    def before(self, effects: Any, tag: str) -> Effect | None:
        last = effects.state.get("last")
        return None if last is None else Effect(*last)

    def write(self, effects: Any, found: Effect) -> None:
        effects.state["last"] = list(found)


def _place(store: str) -> _Tables | _Lists | _State:
    if store == "log":
        return _State()
    if store.startswith("redis"):
        return _Lists()
    return _Tables("?" if store.startswith("sqlite") else "%s")


def _consumer(log: sharedlog.Log, store: str, ledger: str) -> sharedlog.Consumer:
    consumer = sharedlog.Consumer(log, NAME, list(STREAMS), store)
    place = _place(store)

    def handle(text: str, effects: Any) -> None:
        message = effects.message
        name, tag = text.partition(" ")[0], f"{message.stream}/{message.substream}"
        answer = ""
        if is_called(name):
            answer = effects.channel(ledger).unary_unary(NOTE)(name.encode()).decode()
        found = following(tag, place.before(effects, tag), name, answer)
        place.write(effects, found)
        effects.publish(COPIES, found.text, key=tag)

    for stream in STREAMS:
        consumer.on(stream, str)(handle)
    return consumer


def main(url: str, store: str, ledger: str) -> None:
    """Consume until standard input closes."""
    pause = threading.Event()
    log = None
    while log is None:
        with contextlib.suppress(sharedlog.LogUnavailable):
            log = sharedlog.open(url)
    with log:
        consumer = _consumer(log, store, ledger)

        def close() -> None:
            os.read(0, 1)
            pause.set()
            consumer.close()

        threading.Thread(target=close, daemon=True).start()
        print("consumes", flush=True)
        while not pause.is_set():
            try:
                consumer.run()
            except (sharedlog.LogUnavailable, sharedlog.StoreAway) as error:
                if isinstance(error, sharedlog.LogStopped):
                    raise
                # At its beginning, or its end.
                print(f"waits: {error}", file=sys.stderr, flush=True)
                pause.wait(_PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
