"""A process of a consumer: ``python -m tests.sharedlog.consumer.worker LOG STORE [POINT]``.

It tells on standard output when it has begun, and what it did. At POINT, the name of a step, it
tells that it is there, and stops itself. At the order HANGS_AT, of the environment, it hangs; with
CONCURRENCY its function is asynchronous, and so many run at once.
"""

import asyncio
import json
import os
import signal
import sys
import threading

import sharedlog
from sharedlog.testing import _CHANGES, _name


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def consumer_of(log, store):
    concurrency = int(os.environ.get("CONCURRENCY", "0"))
    consumer = sharedlog.Consumer(log, "billing", ["orders"], store, concurrency=concurrency or 1)

    async def awaited(number, effects):
        await asyncio.sleep(0)
        if os.environ.get("HANGS_AT") == str(number):
            write(number, effects)
            tell("hangs")
            await asyncio.Event().wait()
        bill(number, effects)

    def bill(number, effects):
        write(number, effects)
        hang(number)
        effects.publish("invoices", str(number), key=str(number))

    def write(number, effects):
        if store.startswith("redis"):
            effects.connection.rpush("bill", number)
            return
        if store == "log":
            state = effects.state
            state["bills"] = [*state.get("bills", []), number]
            return
        row = effects.connection.execute("SELECT count(*) FROM bill").fetchone()
        place = "?" if store.startswith("sqlite") else "%s"
        if store.startswith("postgres"):
            # Nobody else writes until this is over.
            effects.connection.execute("LOCK TABLE bill IN EXCLUSIVE MODE")
        effects.connection.execute(
            "INSERT INTO bill VALUES (?, ?)".replace("?", place), (row[0], number)
        )

    consumer.on("orders", json.loads)(awaited if concurrency else bill)
    return consumer


def hang(number: int) -> None:
    """Go no further with the order that the environment says."""
    if os.environ.get("HANGS_AT") == str(number):
        tell("hangs")
        while True:
            signal.pause()


def main() -> None:
    url, store, *points = sys.argv[1:]
    with sharedlog.open(url) as log:
        consumer = consumer_of(log, store)
        signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        if points:
            stop_at(points[0], type(log._engine))
        tell("begins")
        consumer.run()
    tell("ended")


def stop_at(point, engine):
    """Have the process stop itself before a step of this name, in whatever thread that is."""
    from sharedlog._consumer.carrying import Carrier

    stopped = []

    def stopping(do):
        def act(self, step):
            if isinstance(step, _CHANGES) and _name(step) == point and not stopped:
                stopped.append(step)
                tell("here")
                # Through this thread, which goes no further, and then the others stop.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return do(self, step)

        return act

    Carrier.do = stopping(Carrier.do)
    # What is owed is appended beside the carrier.
    engine.commit = stopping(engine.commit)


if __name__ == "__main__":
    main()
