"""The goodput of a service that something goes wrong with; ``python -m benchmarks.overload``.

- ``triggers``: what goes wrong, and the servers of a run.
- ``server``, ``effects``: one of them, and what its method does; ``notes``: what it tells.
- ``load``: calls that begin at a rate of their own.
"""
