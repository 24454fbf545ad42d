"""gRPC beside its own API.

- ``raw``: handlers that work on serialised messages.
- ``status``: rich errors; ``codes``: gRPC's codes by number.
- ``source``: callers' addresses; ``certificates``: the names in their certificates.
"""
