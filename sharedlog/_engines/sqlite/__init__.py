"""A log in a SQLite file: durable with each commit, shared by the processes of one machine.

- ``engine``: the log, in the ``rows`` of a ``file``; ``creation``: made, and its losses accepted.
- ``file``, ``commit_note``: a log's tables, whose turn it is to write, and what may befall a
  file and those beside it;
  ``counting``: how many commits there were, and the errors.
- ``tags``: their index, which is written for many entries at once.
- ``terms``: keys that are there for a time; ``renewals``: until when, beside the file.
- ``joining``: appends on the application's own connections; ``applications``: work in those.
- ``watcher``: tells that some process wrote; ``doctor``: a look before an opening.
"""

from sharedlog._engines.sqlite.creation import BUSY_S, accept_loss, create
from sharedlog._engines.sqlite.engine import SqliteEngine

__all__ = ["BUSY_S", "SqliteEngine", "accept_loss", "create"]
