"""A process that follows until it is killed: ``... -m tests.sharedlog.log.follower URL OUT``.

Each message is written to a file of its own process before it is done.
"""

import sys

import sharedlog

if __name__ == "__main__":
    log = sharedlog.open(sys.argv[1])
    with log.follow("s", name="me") as following, open(sys.argv[2], "a", buffering=1) as out:
        for message in following:
            out.write(f"{message.text}\n")
            following.done(message)
            # Each is told to the log at once: what is killed is between two of them.
            following._tell(force=True)
