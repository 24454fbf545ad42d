"""A consumer's code changes, and reads its stream anew from the beginning.

Version 1 adds up what each customer has spent. Version 2 wants totals by month, too, of all that
ever was: it is another consumer, with other tables, that begins at the beginning while version 1
goes on; once it has caught up the readers go over, and version 1 stops. Then a mistake in version 2
is mended, and it is reset: in place, with its tables emptied, under a new epoch.
Run it: ``python -m examples.changed_code``.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sharedlog
from examples.checking import expect

NAMES, PURCHASES = ("ann", "bob", "cem"), 60

Purchase = dict[str, Any]


def first(log: sharedlog.Log, store: str) -> sharedlog.Consumer:
    """Return version 1."""
    consumer = sharedlog.Consumer(log, "totals", ["purchases"], store)

    @consumer.on("purchases", json.loads)
    def add(purchase: Purchase, effects: sharedlog.Effects) -> None:
        effects.connection.execute(
            "INSERT INTO total VALUES (:name, :cents) "
            "ON CONFLICT (name) DO UPDATE SET cents = cents + excluded.cents",
            purchase,
        )

    return consumer


def second(log: sharedlog.Log, store: str, month_of: Callable[[str], str]) -> sharedlog.Consumer:
    """Return version 2, under another name."""
    consumer = sharedlog.Consumer(log, "totals-2", ["purchases"], store)

    @consumer.on("purchases", json.loads)
    def add(purchase: Purchase, effects: sharedlog.Effects) -> None:
        effects.connection.execute(
            "INSERT INTO monthly VALUES (:name, :month, :cents) "
            "ON CONFLICT (name, month) DO UPDATE SET cents = cents + excluded.cents",
            {**purchase, "month": month_of(purchase["day"])},
        )

    return consumer


def month_of(day: str) -> str:
    """Return the month of a day: ``2026-11`` of ``2026-11-23``."""
    return day[:7]


def publish(log: sharedlog.Log, begin: int, end: int) -> list[Purchase]:
    """Publish purchases, and return them."""
    found: list[Purchase] = [
        {"name": NAMES[at % 3], "cents": 100 + at, "day": f"2026-{1 + at % 12:02}-{1 + at % 28:02}"}
        for at in range(begin, end)
    ]
    for each in found:
        log.publish("purchases", json.dumps(each), key=each["name"])
    return found


def monthly(file: Path) -> dict[tuple[str, str], int]:
    """Return what version 2 has."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return {
            (name, month): cents for name, month, cents in database.execute("SELECT * FROM monthly")
        }


def added_up(purchases: list[Purchase]) -> dict[tuple[str, str], int]:
    """Return what it should have."""
    found: dict[tuple[str, str], int] = {}
    for each in purchases:
        key = each["name"], month_of(each["day"])
        found[key] = found.get(key, 0) + each["cents"]
    return found


def main(directory: Path) -> None:
    """Run version 1, then both, then a mended version 2."""
    url, file = f"sqlite:///{directory / 'events.log'}", directory / "shop.db"
    store = f"sqlite:///{file}"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE total (name TEXT PRIMARY KEY, cents INTEGER)")
        database.execute(
            "CREATE TABLE monthly (name TEXT, month TEXT, cents INTEGER, PRIMARY KEY (name, month))"
        )
    with sharedlog.create(url) as log:
        log.stream("purchases", substreams=2)
        purchases = publish(log, 0, PURCHASES)
        expect("purchases that version 1 has", first(log, store).once(), PURCHASES)

        # A mistake: all of a year is one month.
        wrong = second(log, store, lambda day: day[:4])
        purchases += publish(log, PURCHASES, 2 * PURCHASES)
        expect("purchases that version 2 reads from the beginning", wrong.once(), 2 * PURCHASES)
        expect("purchases that version 1 went on with", first(log, store).once(), PURCHASES)
        expect("months are right", monthly(file) == added_up(purchases), False)

        with contextlib.closing(sqlite3.connect(file)) as database, database:
            database.execute("DELETE FROM monthly")
        command = ["consumers", url, "--reset", "totals-2", "--to", "beginning"]
        subprocess.run([sys.executable, "-m", "sharedlog", *command], check=True)  # noqa: S603
        done = second(log, store, month_of).once()
        expect("purchases that it reads anew", done, 2 * PURCHASES)
        expect("months are right", monthly(file) == added_up(purchases), True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        main(Path(found))
