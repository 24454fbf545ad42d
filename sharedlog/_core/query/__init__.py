"""A query's rules: batches that many tasks append, each committed by one marker (DESIGN-LOG §16).

- ``state``: the query's one row, which says who may append and what was committed.
- ``joining``: a plan of a batch is in; ``tasks``: the producers of its tasks, what they append.
- ``attempt``: one attempt of a task through its life, and what it tells.
- ``closing``: the marker that commits a batch; ``cleaning``: what becomes of the producers.
"""
