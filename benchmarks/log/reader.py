"""``python -m benchmarks.log.reader KIND WHERE``: a follower in a process of its own.

Each message begins with the number of its round and when it was sent (the machine's monotonic
clock). The last of a round says how many it had, and is answered by a line: how long they took.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time

from benchmarks.log.systems import READERS, Publisher

__all__ = ["Reader", "sent_of", "stamped"]

# Round, how many it had (0: not the last), nanoseconds.
_HEAD = struct.Struct(">IIQ")
_START_S = 30.0
_HELLO_S = 0.05
_PADDING = bytes(200 - _HEAD.size)


def stamped(number: int, count: int = 0) -> bytes:
    """Return a message of a round, as of now."""
    return _HEAD.pack(number, count, time.monotonic_ns()) + _PADDING


def sent_of(body: bytes) -> int:
    """Return when a message was sent, in nanoseconds of the machine's clock."""
    return int(_HEAD.unpack_from(body)[2])


class Reader:
    """The follower's process. One thread."""

    def __init__(self, kind: str, where: str) -> None:
        """Start it; ``meet`` waits until it follows."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.log.reader", kind, where],
            stdout=subprocess.PIPE,
            text=True,
        )

    def meet(self, publisher: Publisher) -> None:
        """Publish until it has read one."""
        ready = threading.Event()

        def wait() -> None:
            self._line()
            ready.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        end = time.monotonic() + _START_S
        while not ready.wait(_HELLO_S):
            if time.monotonic() > end:
                self._process.kill()
                raise RuntimeError("the follower read nothing")
            publisher.publish(stamped(0))
        waiting.join()

    def seconds(self, publisher: Publisher, number: int, count: int) -> list[float]:
        """Return how long the messages of a round took from being sent to being read."""
        publisher.publish(stamped(number, count))
        found: list[float] = json.loads(self._line())
        return found

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self) -> str:
        found = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not found:
            raise RuntimeError("the follower ended")
        return found


def main() -> None:
    """Follow until the process is killed."""
    kind, where = sys.argv[1:]
    took: dict[int, list[float]] = {}
    due: dict[int, int] = {}
    met = False
    for body in READERS[kind](where):
        number, count, sent = _HEAD.unpack_from(body)
        if not number:
            if not met:
                _say("met")
            met = True
        elif count:
            due[number] = count
        else:
            took.setdefault(number, []).append((time.monotonic_ns() - sent) / 1e9)
        if number in due and len(took.get(number, ())) >= due[number]:
            _say(json.dumps(took.pop(number)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
