"""SQLite, once for all who keep something in it: stores, logs, consumers' databases, outboxes.

- ``address``: URLs; ``opening``: the one place where connections are made; ``failures``: what
  errors mean.
- ``guard``: is the file still what was opened, by the names of it and those beside it, on
  ``wal_file`` (was it cut off) and ``mark`` (was another one copied over it).
- ``long_wal``: its length, emptied and bounded; ``folders``: names that outlive a loss of power;
  ``write_lock``: who has the lock to write; ``owned``: transactions in which other code runs, by
  connections that are ``lent``.
- ``doctor``: a look at a file before a start.
"""
