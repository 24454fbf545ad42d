"""The target: a gRPC server that players call with the messages of some streams (DESIGN-LOG §15).

- ``adding``: what users call; ``target``: what a target has, on either kind of server.
- ``sync_target``, ``aio_target``: its methods on ``grpc.server`` and on ``grpc.aio.server``;
  ``aio_connection``: what one call brought there, in ``lanes``; ``aio_driving``: how the rules
  are carried out on an event loop.
- ``requests``: what travels, as the rules have it; ``access``: who may deliver.

The rules are ``_core``'s.
"""
