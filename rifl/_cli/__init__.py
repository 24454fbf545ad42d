"""The ``rifl`` command: what stores hold, what to do about a stuck call, and leases alone.

- ``command``: arguments and errors; ``unknown``, ``export``, ``report``: what it does.
- ``identity``: what it reads of a call.
- ``lease_service``: the lease service alone.
"""

from _rifl_ground.exits import ExitCode
from rifl._cli.command import main

__all__ = ["ExitCode", "main"]
