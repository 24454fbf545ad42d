"""The target: a gRPC server that players call with the messages of some streams (DESIGN-LOG §15).

- ``adding``: what users call; ``target``: what a target has, on either kind of server.
- ``sync_target``, ``aio_target``: its methods on ``grpc.server`` and on ``grpc.aio.server``;
  ``lanes``: what came on one connection and waits.
- ``requests``: what travels, as the rules have it; ``access``: who may deliver.

The rules are ``_core``'s.
"""
