"""A consumer whose handler forks, and whose child goes on: python -m ... forking ENDS DIRECTORY.

Prints what the child ended with: 42 where it was refused.
"""

import os
import sys
from pathlib import Path

import sharedlog
from tests.sharedlog.consumer.world import World


def main(ends, directory):
    """``ends``: what the child does before it returns."""
    world = World(directory, orders=6, url=f"sqlite:///{directory / 'log.db'}", substreams=1)
    parent, children = os.getpid(), []

    def fork(order, effects):
        if order["what"] != "order 2" or children:
            return
        children.append(os.fork())
        if os.getpid() == parent:
            _, status = os.waitpid(children[0], 0)
            children[0] = os.waitstatus_to_exitcode(status)
        elif ends == "raises":
            raise ValueError("in the child")
        elif ends == "writes":
            effects.connection.execute("INSERT INTO bill VALUES (0, 'child', 0, 'nothing')")

    world.looks = fork
    code = 1
    try:
        world.consumer().once()
    except sharedlog.LogStopped:
        code = 42
    finally:
        if os.getpid() != parent:
            os._exit(code)
    world.check()
    world.log.close()
    print("child", *children)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
