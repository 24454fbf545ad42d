"""What a server decides, tracks and records.

- ``serving``: one arrival, step by step; ``batching``, ``streams``: those of batches and streams.
- ``decision``, ``verdict``, ``policy``: what becomes of an arrival.
- ``result_tracker``, ``keyed_tracker``, ``client_table``, ``client_entry``, ``namespace``: what is
  known of each client's calls; ``held``, ``groups``, ``resting``, ``retention``: bounds and ends.
- ``leases``, ``sendable``, ``later``: what serving asks of its surroundings.
"""
