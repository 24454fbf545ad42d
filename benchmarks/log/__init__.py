"""The shared log's benchmark, ``python -m benchmarks.log``.

- ``own``: what it costs, beside the rows of ``raw``: by hand, in a SQLite file, with a group
  commit.
- ``many``: a log of a million entries. ``followed``: a served log with many followers.
- ``beside``: the log and others side by side. ``systems`` says how each is published to and
  followed, ``kafka`` runs a broker (``kafka.xml``: what of), ``reader`` is the follower's process.
"""
