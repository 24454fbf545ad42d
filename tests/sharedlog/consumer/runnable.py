"""A module with a consumer, for ``sharedlog run``: what it is about is in the environment."""

import os
import sys

import sharedlog

log = sharedlog.open(os.environ["RUNNABLE_LOG"])
consumer = sharedlog.Consumer(log, "running", ["orders"], os.environ["RUNNABLE_STORE"])
something_else = object()


@consumer.on("orders", str)
def note(order, effects):
    """Note who has done it; two orders end this process's run."""
    if order == "exit":
        sys.exit(0)
    effects.connection.execute("INSERT INTO done VALUES (?, ?)", (order, os.getpid()))
    if order == "the last":
        consumer.close()
