"""A read model: articles are searched in SQLite's full text index, which follows a shared log.

Articles are published, changed and withdrawn; two processes of a consumer keep the index, and
publish what they did. They are killed again and again, and the index is what one reading of the
log makes of it. Another consumer then builds it anew, with other columns, from the beginning.
Run it: ``python -m examples.read_model``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sharedlog
from examples.checking import expect
from examples.server_process import ServerProcess

WORDS = ("harbour", "lantern", "orchard", "river", "signal", "winter")
ARTICLES, ROUNDS = 30, 3
_PATIENCE_S = 60.0


def index_of(log: sharedlog.Log, name: str, file: Path) -> sharedlog.Consumer:
    """Return the consumer that keeps the index in a file."""
    consumer = sharedlog.Consumer(log, name, ["articles"], f"sqlite:///{file}")

    @consumer.on("articles", json.loads)
    def keep(article: dict[str, Any], effects: sharedlog.Effects) -> None:
        database = effects.connection
        database.execute("DELETE FROM article WHERE name = ?", (article["name"],))
        if article["text"] is not None:
            database.execute(
                "INSERT INTO article VALUES (?, ?)", (article["name"], article["text"])
            )
        effects.publish("indexed", article["name"], key=article["name"])

    return consumer


def make_index(file: Path) -> None:
    """Make an empty index."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE VIRTUAL TABLE article USING fts5(name UNINDEXED, text)")


def search(file: Path, word: str) -> list[str]:
    """Return the names of the articles with this word."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        found = database.execute("SELECT name FROM article WHERE article MATCH ?", (word,))
        return sorted(name for (name,) in found)


def publish(log: sharedlog.Log, turn: int) -> None:
    """Publish each article, with other words in each turn; every seventh is withdrawn."""
    for number in range(ARTICLES):
        name = f"article {number}"
        words = f"{WORDS[(number + turn) % 6]} and {WORDS[(number * turn) % 6]}"
        text = None if (number + turn) % 7 == 0 else words
        log.publish("articles", json.dumps({"name": name, "text": text}), key=name)


def articles_of(log: sharedlog.Log) -> dict[str, str]:
    """Return the articles as one reading of the log has them."""
    found: dict[str, str] = {}
    for substream in range(4):
        for message in log.read("articles", substream, limit=10_000):
            article = json.loads(message.value)
            found.pop(article["name"], None)
            if article["text"] is not None:
                found[article["name"]] = article["text"]
    return found


def serve(url: str, file: Path) -> None:
    """One process of the consumer."""
    with sharedlog.open(url) as log:
        consumer = index_of(log, "index", file)
        threading.Thread(target=_close_at_end, args=(consumer,), daemon=True).start()
        print("listening 0", flush=True)
        consumer.run()


def _close_at_end(consumer: sharedlog.Consumer) -> None:
    sys.stdin.read()
    consumer.close()


def main(directory: Path) -> None:
    """Publish, with processes killed meanwhile, and compare."""
    url, file = f"sqlite:///{directory / 'events.log'}", directory / "index.db"
    make_index(file)
    with sharedlog.create(url) as log, contextlib.ExitStack() as stack:
        log.stream("articles", substreams=4)
        log.stream("indexed", substreams=1)
        processes = [
            stack.enter_context(ServerProcess("examples.read_model", "--serve", url, str(file)))
            for _ in range(2)
        ]
        for each in processes:
            each.start()
        for turn in range(ROUNDS):
            publish(log, turn)
            processes[turn % 2].kill()
            processes[turn % 2].start()
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and _indexed(log) < ROUNDS * ARTICLES:
            time.sleep(0.05)
        expect("messages that were indexed", _indexed(log), ROUNDS * ARTICLES)
        articles = articles_of(log)
        for word in WORDS:
            expected = sorted(name for name, text in articles.items() if word in text)
            expect(f"articles with {word!r}", search(file, word), expected)
        other = directory / "other.db"
        make_index(other)
        done = index_of(log, "index-2", other).once()
        expect("messages that were read anew", done, ROUNDS * ARTICLES)
        same = [search(other, word) == search(file, word) for word in WORDS]
        expect("words that give the same", same.count(True), len(WORDS))


def _indexed(log: sharedlog.Log) -> int:
    return len(log.read("indexed", 0, limit=10_000))


def run() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("URL", "FILE"), help="as a process of it")
    arguments = parser.parse_args()
    if arguments.serve:
        url, file = arguments.serve
        serve(url, Path(file))
        return
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))


if __name__ == "__main__":
    run()
