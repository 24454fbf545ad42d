"""The server's rules: what it decides, tracks and records.

- ``serving``: the steps of a call (DESIGN §4), of which ``admission`` is the first; ``records``: a
  store, as they see it; ``answer``: what a handler ended with, and what leaves; ``fast_path`` takes
  the steps as long as no caller has to wait; ``later`` is what is waited for
- ``streams``, ``batching``: calls with a stream on one side, and many calls in one
- ``client_table``: steps 2 to 5, one ``decision`` with its ``verdict``; ``client_entry`` is one
  client and its attempts, ``idle_clients`` those that do nothing
- ``result_tracker``, ``keyed_tracker``: the calls of one client, by seq and by key; ``key_filter``:
  which keys a store can have
- ``policy``, ``bounds``: what the user declares; ``unclaimed``: what runs before a decision
- ``room``: how many handlers run at once, and who is next; ``unheard``: which are cancelled
- ``leases``, ``namespace``: who is known; ``sendable``: which answers can be sent

It imports nothing of ``_calling``: what both sides need is in ``_shared``.
"""
