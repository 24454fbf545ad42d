"""A consumer with lanes whose handler forks, and whose child goes on: python -m ... KIND FILE.

Prints what the child ended with, and how many orders are noted.
"""

import os
import sys

import sharedlog


def main(kind, file):
    """``kind``: of the handler."""
    log = sharedlog.create(f"sqlite:///{file}")
    log.stream("orders", substreams=2)
    for number in range(4):
        log.publish("orders", f"{number}")
    consumer = sharedlog.Consumer(log, "noting", ["orders"], "log", concurrency=2)
    children, noted = [], []

    def fork(order, effects):
        if order == "1" and not children:
            children.append(os.fork())
            if not children[0]:
                return
            _, status = os.waitpid(children[0], 0)
            children[0] = os.waitstatus_to_exitcode(status)
        effects.state[order] = order
        noted.append(order)

    async def fork_on_the_loop(order, effects):
        fork(order, effects)

    consumer.on("orders", str)(fork if kind == "sync" else fork_on_the_loop)
    consumer.once()
    log.close()
    print("child", *children, "noted", len(noted))


if __name__ == "__main__":
    main(*sys.argv[1:])
