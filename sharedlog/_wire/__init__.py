"""The log's own types as they travel over gRPC, for both ends.

- ``errors``: what a log refuses, as a status; ``places``: positions, messages and holds;
  ``methods``: the methods' names and the bounds of messages.
"""
