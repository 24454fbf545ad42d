"""The ``sharedlog`` command: a log looked into, and operated, from a shell.

- ``command``: one command, and its errors; ``arguments``: those of each, and restored,
  accept-loss, defragment.
- ``messages``: publish, read, tail, export; ``operating``: create, streams, holds, trim, relay,
  producers, retire, forget, verify.
- ``attending``: consumers' substreams; ``consuming``: their processes.
- ``querying``: queries of Spark, what they committed and have read.
- ``serving``: a log over gRPC.
- ``playing``: a log into gRPC services; ``letters``: the messages that were given up.
- ``audited``: what commands change, as the audit is told.
- ``shown``: prints messages and progress; ``given``: reads times and durations.
"""

from _rifl_ground.exits import ExitCode
from sharedlog._cli.command import main

__all__ = ["ExitCode", "main"]
