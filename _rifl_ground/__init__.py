"""The ground floor: what the other packages need of a process and of databases.

It is private, and imports none of them.

- ``forks``: refuses what a forked child inherits; ``sqlite``: what all have in common who keep
  something in a SQLite file; ``log``: events that go where the
  application's own logs go.
- ``urls``: splits the URLs of servers.
"""
