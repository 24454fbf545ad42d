"""The benchmark of consumers, ``python -m benchmarks.consume``: consume, update, produce.

- ``worker``: what a worker does, and the messages; ``databases``: what it updates.
- ``ours``: a consumer, also with its guarantee off, or its database in the log's file;
  ``by_hand``: the loops that one writes; ``others``: Kafka's transactions, Redis Streams.
- ``pacer``: a process that publishes at a pace; ``takeover``: processes of which one is killed;
  ``recovery``: a state in the log, read by who takes over.
- ``idle``: processes that wait.
- ``parts``: what is measured, pair by pair.
- ``recovery``: of a state that is in the log, by itself: ``python -m benchmarks.consume.recovery``.
"""
