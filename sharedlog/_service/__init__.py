"""The log over gRPC, for other hosts and languages (DESIGN-LOG §12, L8; log-protocol.md).

- ``server``: what listens, on an event loop; ``answers``: the rules behind each method, in threads;
  ``appends``: what may be in an append, and its rule; ``followers``: the streams that are followed;
  ``shared_tail``: what is new in one, read once for all; ``tail``: who waits for an append.
- ``steps``: those of players, whose rules run where they are.
- ``audited``: what operators and players change, as the audit is told.
- ``access``: who may do what; ``quotas``: how much of it; ``settings``: both, of a file.
- ``requests``: what came, as the rules take it, or why it cannot be.
"""
