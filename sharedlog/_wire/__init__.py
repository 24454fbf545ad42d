"""The log's own types as they travel over gRPC, for both ends.

- ``refusals``: what a log refuses, as a status; ``conversions``: its other types;
  ``methods``: the methods' names and the bounds of messages.
"""
