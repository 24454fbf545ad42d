"""A cache in Redis, which follows a shared log and is never wrong for good.

Prices are published again and again. Two processes of a consumer keep the newest price of each
item, how often it changed, and the dearest items; they are killed again and again, and the cache
is what one reading of the log makes of it: no change is counted twice, and none is lost.
Run it: ``python -m examples.redis_cache``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis

import sharedlog
from examples.checking import expect
from examples.redis_process import running_redis
from examples.server_process import ServerProcess

ITEMS, ROUNDS = 40, 2
_PATIENCE_S = 60.0


def cache_of(log: sharedlog.Log, store: str) -> sharedlog.Consumer:
    """Return the consumer that keeps the cache."""
    consumer = sharedlog.Consumer(log, "cache", ["prices"], store)

    @consumer.on("prices", json.loads)
    def keep(price: dict[str, Any], effects: sharedlog.Effects) -> None:
        cache = effects.connection
        cache.hset(f"item:{price['item']}", mapping={"cents": price["cents"]})
        cache.hincrby(f"item:{price['item']}", "changes", 1)
        cache.zadd("dearest", {price["item"]: price["cents"]})

    return consumer


def publish(log: sharedlog.Log, turn: int) -> None:
    """Publish a price of each item, another one in each turn."""
    for number in range(ITEMS):
        item = f"item {number}"
        price = {"item": item, "cents": 100 + (number * 37 + turn * 59) % 500}
        log.publish("prices", json.dumps(price), key=item)


def prices_of(log: sharedlog.Log) -> dict[str, list[int]]:
    """Return the prices of each item, as one reading of the log has them."""
    found: dict[str, list[int]] = {}
    for substream in range(4):
        for message in log.read("prices", substream, limit=10_000):
            price = json.loads(message.value)
            found.setdefault(price["item"], []).append(price["cents"])
    return found


def serve(url: str, store: str) -> None:
    """One process of the consumer."""
    with sharedlog.open(url) as log:
        consumer = cache_of(log, store)
        threading.Thread(target=_close_at_end, args=(consumer,), daemon=True).start()
        print("listening 0", flush=True)
        consumer.run()


def _close_at_end(consumer: sharedlog.Consumer) -> None:
    sys.stdin.read()
    consumer.close()


def main(directory: Path) -> None:
    """Publish, with processes killed meanwhile, and compare."""
    url = f"sqlite:///{directory / 'events.log'}"
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(running_redis(directory))
        store = f"unix://{socket}"
        client = stack.enter_context(redis.Redis(unix_socket_path=str(socket)))
        log = stack.enter_context(sharedlog.create(url))
        log.stream("prices", substreams=4)
        processes = [
            stack.enter_context(ServerProcess("examples.redis_cache", "--serve", url, store))
            for _ in range(2)
        ]
        for each in processes:
            each.start()
        for turn in range(ROUNDS):
            publish(log, turn)
            processes[turn % 2].kill()
            processes[turn % 2].start()
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and _changes(client) < ROUNDS * ITEMS:
            time.sleep(0.05)
        prices = prices_of(log)
        expect("changes that were counted", _changes(client), ROUNDS * ITEMS)
        cached = {item: client.hget(f"item:{item}", "cents") for item in prices}
        newest = {item: str(all_of[-1]).encode() for item, all_of in prices.items()}
        expect("items whose cached price is the newest", _same(cached, newest), ITEMS)
        dearest = {name.decode(): cents for name, cents in client.zscan_iter("dearest")}
        expect(
            "items that are ranked by it",
            _same(dearest, {i: p[-1] for i, p in prices.items()}),
            ITEMS,
        )


def _same(one: dict[str, Any], other: dict[str, Any]) -> int:
    return sum(one[item] == other[item] for item in other)


def _changes(client: Any) -> int:
    keys = list(client.scan_iter("item:*"))
    return sum(int(client.hget(key, "changes")) for key in keys)


def run() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("URL", "STORE"), help="as a process of it")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))


if __name__ == "__main__":
    run()
