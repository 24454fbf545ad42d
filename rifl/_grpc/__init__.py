"""gRPC beside its own API.

- ``raw``: handlers that work on serialised messages.
- ``status``: rich errors; ``codes``: gRPC's codes by number.
- ``source``: callers' addresses; ``certificates``: the names in their certificates.
- ``pool``: a server's threads.
- ``entrance``, ``aio_entrance``: where calls wait for their message, in no other's way;
  ``waiting``: which of them goes, ``ended_calls``: its event.
- ``shares``: of what callers may keep open; ``audit``: those that are not let in.
"""
