"""The benchmark of deliveries, ``python -m benchmarks.deliver``: the player, and who stands beside.

- ``delays``: of the player beside a bare fan-out; of applying beside Kafka and Redis Streams.
- ``away``: targets that are stopped, or catch up; ``sustained``: how much four targets take.
- ``fleet``: a log, a player and targets, and the others' consumers, each process a ``worker``:
  ``player``, ``target``, ``fanout``, ``consumer``, ``caller``.
- ``messages``: what is sent; ``publishing``: by whom; ``board``: where all say when it came.
- ``parts``: what is measured, one after the other; ``report``: the figures as a table.
"""
