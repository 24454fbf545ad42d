"""The ``rifl`` command: what stores hold, and what to do about a stuck call.

- ``command``: arguments and errors; ``unknown``, ``export``, ``report``: what it does.
- ``identity``, ``tables``, ``exits``, ``version``: what it reads, prints and ends with.
"""

from rifl._cli.command import main
from rifl._cli.exits import ExitCode

__all__ = ["ExitCode", "main"]
