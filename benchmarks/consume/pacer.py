"""A pacer: a process that publishes at a pace; ``python -m benchmarks.consume.pacer KIND WHERE``.

Each line that it is given is a rate and a count; it says when it has published so many.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import sharedlog
from benchmarks.consume.worker import INPUT, SUBSTREAMS, body_of

__all__ = ["Pacer"]


class Pacer:
    """The process. One thread."""

    def __init__(self, kind: str, where: str) -> None:
        """``kind``: of ``log``, ``kafka``, ``redis``."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.consume.pacer", kind, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def start(self, rate: float, count: int) -> None:
        """Have it publish so many messages, so many a second."""
        if self._process.stdin is None:
            raise RuntimeError("the pacer ended")
        self._process.stdin.write(f"{rate} {count}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until it has."""
        self._line()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self) -> None:
        if self._process.stdout is None or not self._process.stdout.readline():
            raise RuntimeError("the pacer ended")


def _of_log(where: str) -> Callable[[int], None]:
    log = sharedlog.open(where)
    return lambda number: log.publish(INPUT, body_of(number)) and None


def _of_redis(where: str) -> Callable[[int], None]:
    import redis

    client: Any = redis.Redis.from_url(where)
    return lambda number: client.xadd(INPUT, {"body": body_of(number)})


def _of_kafka(where: str) -> Callable[[int], None]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": where,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
    )

    def publish(number: int) -> None:
        producer.produce(INPUT, body_of(number), partition=number % SUBSTREAMS)
        producer.flush()

    return publish


_KINDS = {"log": _of_log, "redis": _of_redis, "kafka": _of_kafka}


def main(kind: str, where: str) -> None:
    """Publish what is asked for, until standard input closes."""
    publish = _KINDS[kind](where)
    print("ready", flush=True)
    for line in sys.stdin:
        rate, count = line.split()
        began = time.monotonic()
        for number in range(int(count)):
            # One that is late does not hurry: what waits together would be published together.
            time.sleep(max(0.0, began + number / float(rate) - time.monotonic()))
            publish(number)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
