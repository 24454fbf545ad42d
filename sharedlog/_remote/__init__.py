"""A log that a server has: ``sharedlog.open("grpc://HOST:PORT")`` (docs/reference/log-protocol.md).

- ``address``: what the URL says; ``channel``: calls, and their errors; ``rules``: for each rule the
  call that has it carried out, with ``appends`` for those that append; ``remote``: the log as
  ``_log`` uses it; ``follower``: a stream that is followed; ``steps``: those of a player.
"""
