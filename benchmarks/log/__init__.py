"""The shared log's benchmark, ``python -m benchmarks.log``: beside rows inserted by hand.

- ``raw``: those rows, in a SQLite file, with a group commit.
"""
